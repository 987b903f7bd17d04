/* SPDX-License-Identifier: Apache-2.0 */
/*
 * windows.h - places of the device window, as `singvgpu run --window`, the proxy's --window and the
 * variable SINGVGPU_WINDOW write them: BASE:LEN[,BASE:LEN ...]
 *
 * Both are bytes, decimal or with 0x; LEN may end with K, M, G or T (1024 …). They are tried in turn.
 */
#ifndef SV_WINDOWS_H
#define SV_WINDOWS_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto.h"

#define SV_WINDOWS_MAX	16
#define SV_WINDOW_LONGEST	(1ull << 46)	/* bytes */

/* Has it a place and a length in a program's addresses? */
static inline bool sv_window_valid(const struct sv_window *w)
{
	return w->base && w->len && (w->base | w->len) % SV_GRANULE == 0 &&
	       w->len <= SV_WINDOW_LONGEST && w->base <= (1ull << 47) - w->len;
}

/* Parses a number; *text is then behind it. Negative ones are refused, as in strtoull they wrap. */
static inline int sv_window_number(const char **text, uint64_t *v)
{
	char *end;

	if (**text < '0' || **text > '9')
		return -EINVAL;
	errno = 0;
	*v = strtoull(*text, &end, 0);
	*text = end;
	return errno ? -EINVAL : 0;
}

/* Returns how many there are in w, or -EINVAL. */
static inline int sv_windows_parse(const char *text, struct sv_window w[SV_WINDOWS_MAX])
{
	static const char units[] = "KMGT";
	const char *unit;
	int n = 0;

	do {
		if (n == SV_WINDOWS_MAX || sv_window_number(&text, &w[n].base) || *text++ != ':' ||
		    sv_window_number(&text, &w[n].len))
			return -EINVAL;
		unit = *text ? strchr(units, *text) : NULL;
		if (unit) {
			int shift = 10 * (int)(unit - units + 1);

			if (w[n].len > UINT64_MAX >> shift)
				return -EINVAL;
			w[n].len <<= shift;
			text++;
		}
		if (!sv_window_valid(&w[n++]))
			return -EINVAL;
	} while (*text++ == ',');
	return text[-1] ? -EINVAL : n;
}

#endif
