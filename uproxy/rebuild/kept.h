/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept.h - what logged records refer to, and the values that a restored program already holds
 */
#ifndef KEPT_H
#define KEPT_H

#include "call.h"

struct held;
struct kept_digest;

/* ------------------------------------------------------------------------------ kept.c */

/*
 * Copies of arena contents that logged records refer to, by the records' numbers, since the client
 * may have reused the arena; and the bytes of images in the program's files (held.h), or their digest alone until
 * the image is loaded again. Any thread.
 */
int kept_add(uint64_t seq, const void *p, uint64_t len);	/* -ENOMEM, -EEXIST */
int kept_take(uint64_t seq, void *p, uint64_t len);		/* the same; p becomes ours */
uint64_t kept_next(uint64_t seq, const void **p, uint64_t *len);	/* after seq; 0: none */
const void *kept_find(uint64_t seq, uint64_t *len);		/* NULL: there is none */
void kept_sweep(bool (*keep)(void *arg, uint64_t seq), void *arg);
/*
 * kept_hold replaces what is kept under seq; the reference h becomes ours unless it fails (-ENOMEM).
 * kept_held: a reference, which the caller drops; NULL: there is none. kept_expect keeps a digest
 * (-ENOMEM, -EEXIST); kept_expected: false: there is none.
 */
int kept_hold(uint64_t seq, struct held *h);
struct held *kept_held(uint64_t seq);
int kept_expect(uint64_t seq, uint64_t len, const struct kept_digest *d);
bool kept_expected(uint64_t seq, uint64_t len, struct kept_digest *d);

/* ------------------------------------------------------------------------------ wanted.c */

/*
 * wanted_add notes the value that an object had before the dump (-ENOMEM); wanted_next
 * asks the driver for that value again.
 */
int wanted_add(uint64_t of, uint32_t number, uint64_t value);
void wanted_next(struct sv_session *s, uint64_t of, uint32_t number);

#endif
