// SPDX-License-Identifier: Apache-2.0
/*
 * wanted.c - values that a restored program already holds, for the driver to choose again
 *
 * Textures and surfaces are found by the number of the record that made them, conditional handles
 * by graph and number. observe_expect fills the list before the replay; consumer.
 */
#include <stdlib.h>

#include "kept.h"

struct wanted {
	uint64_t of, value;
	uint32_t number;
};

static struct wanted *all;	/* in the order of wanted_add; some thousands at most */
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

/* Searches from the last hit on: values are asked for in much the order of wanted_add. */
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
