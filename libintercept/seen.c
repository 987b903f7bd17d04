// SPDX-License-Identifier: Apache-2.0
/*
 * seen.c - which ends of objects the proxies have seen, so that their indices are free
 *
 *   ends … ─► seen_ask(): SV_OP_X_SEEN in each channel, behind them ─► proxies: word = stamp ─► seen_is()
 *
 * A session takes part from its first communicator on; others park nothing.
 */
#include "object.h"

#include <errno.h>

static uint64_t *word_of(const struct session *s)
{
	/* pairs with seen_begin() */
	uint64_t off = __atomic_load_n(&s->seen_word, __ATOMIC_ACQUIRE);

	return off ? arena_at(off) : NULL;
}

uint64_t seen_ask(void)
{
	struct sv_seen a;
	int rc = 0;

	/* Stamps come in their order: each word only grows. */
	lock_take(&process.locks.seen);
	a.value = ++process.seen;
	for (int i = 0; i < SV_DEVICES_MAX && rc != -EAGAIN; i++) {
		a.word = sessions[i].seen_word;
		if (a.word && sessions[i].ring)
			rc = ring_try_submit(sessions[i].ring, SV_OP_X_SEEN, &a, sizeof(a), NULL, 0);
	}
	lock_drop(&process.locks.seen);
	return rc == -EAGAIN ? 0 : a.value;
}

bool seen_is(uint64_t stamp)
{
	for (int i = 0; i < SV_DEVICES_MAX; i++) {
		const uint64_t *word = word_of(&sessions[i]);

		/* pairs with do_seen() of the proxy */
		if (word && __atomic_load_n(word, __ATOMIC_ACQUIRE) < stamp)
			return false;
	}
	return true;
}
