// SPDX-License-Identifier: Apache-2.0
/*
 * wanted.c - values that a restored program has already, for the driver to choose them again
 *
 * Textures and surfaces by the number of the record that made them, conditional handles by graph and
 * number. Filled by observe_expect before the replay; consumer.
 */
#include <stdlib.h>

#include "uproxy_i.h"

struct wanted {
	uint64_t of, value;
	uint32_t number;
};

static struct wanted *all;	/* as they come: some thousands at most */
static size_t n, cap, last;

int wanted_add(uint64_t of, uint32_t number, uint64_t value)
{
	if (n == cap) {
		size_t more = cap ? cap * 2 : 64;
		struct wanted *p = realloc(all, more * sizeof(*p));

		if (!p)
			return -ENOMEM;
		all = p;
		cap = more;
	}
	all[n++] = (struct wanted){ of, value, number };
	return 0;
}

/* They are asked for in much the same order as they were added. */
void wanted_next(struct sv_session *s, uint64_t of, uint32_t number)
{
	for (size_t i = 0; i < n; i++) {
		const struct wanted *w = &all[(last + i) % n];

		if (w->of == of && w->number == number) {
			last = (last + i + 1) % n;
			hal_next_value(&s->hal, w->value);
			return;
		}
	}
	if (n)
		hal_next_value(&s->hal, 0);
}
