/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rseq_x86.h - the restartable sequences of the producers (rseq(2)), for x86-64
 *
 * ring_post.h has the sequence of most submissions, and explains how these work.
 */
#ifndef RSEQ_X86_H
#define RSEQ_X86_H

#include <stddef.h>

#include "ring_i.h"
#include "ring_post.h"

typedef uint8_t v16 __attribute__((vector_size(16)));

/* One attempt to commit a record. */
struct attempt {
	uint64_t key;		/* what tx->owner must be */
	uint64_t old;		/* what tx->next must be */
	uint64_t seq;		/* the record's; its position is seq - 1 */
	uint64_t end;		/* position behind it */
	uint64_t clean;		/* for tx->clean */
	uint64_t grant;		/* for tx->end */
	void *unit;
	void *next;		/* unit behind the record, to be made clean */
	uint8_t *stale;		/* next's */
	const void *a;		/* payload behind the first unit */
	uint64_t alen;
	const void *b;
	uint64_t blen;
	uint64_t header;	/* op, cpl and len, as they lie in struct singvgpu_rec */
	v16 first[3];		/* the payload's first 48 bytes */
};

#define AT(name, type, field) [name] "i" (offsetof(type, field))
#define TX_OFFSETS							\
	AT(owner, struct ring_tx, owner), AT(tpos, struct ring_tx, pos),	\
	AT(tnext, struct ring_tx, next), AT(tclean, struct ring_tx, clean),	\
	AT(tend, struct ring_tx, end)

/* Copies len bytes to rdi; by words if they are few, since a string move takes long to start. */
#define RSEQ_COPY(from, len)						\
	"movq %c[" len "](%[t]), %%rcx\n"				\
	"movq %c[" from "](%[t]), %%rsi\n"				\
	"cmpq $256, %%rcx\n"						\
	"ja 7f\n"							\
	"subq $8, %%rcx\n"						\
	"jb 6f\n"							\
	"5: movq (%%rsi), %%r8\n"					\
	"addq $8, %%rsi\n"						\
	"movq %%r8, (%%rdi)\n"						\
	"addq $8, %%rdi\n"						\
	"subq $8, %%rcx\n"						\
	"jae 5b\n"							\
	"6: addq $8, %%rcx\n"						\
	"jz 8f\n"							\
	"7: rep movsb\n"						\
	"8:\n"

/* 0 committed; -EAGAIN not: interrupted, or key or old do not match any more. */
static inline int rseq_commit(struct ring_tx *tx, const struct attempt *t)
{
	struct rseq *rs = rseq_area();

	asm goto(RSEQ_ENTER
		 "movq %c[key](%[t]), %%rax\n"
		 "cmpq %%rax, %c[owner](%[tx])\n"
		 "jne %l[lost]\n"
		 "movq %c[old](%[t]), %%rax\n"
		 "cmpq %%rax, %c[tnext](%[tx])\n"
		 "jne %l[lost]\n"
		 "movq %c[unit](%[t]), %%rdx\n"
		 "movq %c[seq](%[t]), %%rax\n"
		 "cmpq %%rax, (%%rdx)\n"
		 "je %l[lost]\n"
		 "leaq -1(%%rax), %%rcx\n"
		 "movq %c[clean](%[t]), %%rsi\n"
		 "movq %c[end](%[t]), %%rdi\n"
		 "movq %%rcx, %c[tpos](%[tx])\n"
		 "movq $0, %c[tend](%[tx])\n"
		 "movq %%rsi, %c[tclean](%[tx])\n"
		 "movq %%rdi, %c[tnext](%[tx])\n"
		 "movq %c[grant](%[t]), %%rcx\n"
		 "movq %%rcx, %c[tend](%[tx])\n"
		 "movq %c[header](%[t]), %%rcx\n"
		 "movups %c[first](%[t]), %%xmm0\n"
		 "movups %c[first]+16(%[t]), %%xmm1\n"
		 "movups %c[first]+32(%[t]), %%xmm2\n"
		 "movq %%rcx, 8(%%rdx)\n"
		 "movups %%xmm0, 16(%%rdx)\n"
		 "movups %%xmm1, 32(%%rdx)\n"
		 "movups %%xmm2, 48(%%rdx)\n"
		 "leaq 64(%%rdx), %%rdi\n"
		 RSEQ_COPY("a", "alen")
		 RSEQ_COPY("b", "blen")
		 "movq %c[next](%[t]), %%rdi\n"
		 "movq $0, (%%rdi)\n"
		 "movq %c[stale](%[t]), %%rdi\n"
		 "movb $0, (%%rdi)\n"
		 "movq %%rax, (%%rdx)\n"
		 RSEQ_LEAVE
		 : : [rs] "r" (rs), [tx] "r" (tx), [t] "r" (t), TX_OFFSETS,
		     AT(key, struct attempt, key), AT(old, struct attempt, old),
		     AT(seq, struct attempt, seq), AT(end, struct attempt, end),
		     AT(clean, struct attempt, clean),
		     AT(grant, struct attempt, grant), AT(unit, struct attempt, unit),
		     AT(next, struct attempt, next), AT(stale, struct attempt, stale),
		     AT(a, struct attempt, a), AT(alen, struct attempt, alen),
		     AT(b, struct attempt, b), AT(blen, struct attempt, blen),
		     AT(header, struct attempt, header), AT(first, struct attempt, first)
		 : "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "xmm0", "xmm1", "xmm2"
		 : lost, aborted);
	return 0;
lost:
	store(&rs->rseq_cs, 0);
aborted:
	return -EAGAIN;
}

/* Give up the ownership, if the calling thread still has it. */
static inline void rseq_release(struct ring_tx *tx, uint64_t key)
{
	struct rseq *rs;

again:
	rs = rseq_area();
	asm goto(RSEQ_ENTER
		 "cmpq %[key], %c[owner](%[tx])\n"
		 "jne %l[lost]\n"
		 "movq $0, %c[owner](%[tx])\n"
		 RSEQ_LEAVE
		 : : [rs] "r" (rs), [tx] "r" (tx), [key] "r" (key), TX_OFFSETS
		 : "memory", "cc", "rax"
		 : lost, aborted);
	return;
lost:
	store(&rs->rseq_cs, 0);
	return;
aborted:
	goto again;
}

#endif /* RSEQ_X86_H */
