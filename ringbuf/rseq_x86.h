/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rseq_x86.h - the restartable sequences of the producers (rseq(2)), for x86-64
 *
 * Between label 1 and label 2 a signal, a preemption, a migration or a membarrier of another
 * thread sends the thread to label 4; the store in front of label 2 is the sequence's effect.
 * What precedes it may have been done in part and must do no harm then.
 */
#ifndef RSEQ_X86_H
#define RSEQ_X86_H

#include <stddef.h>
#include <sys/rseq.h>

#include "ring_i.h"

/* Loaded as it was stored, so that the processor can forward it. */
typedef uint8_t v16 __attribute__((vector_size(16)));

/* One attempt to commit a record. */
struct attempt {
	uint64_t key;		/* what tx->owner must be */
	uint64_t old;		/* what tx->next must be */
	uint64_t seq;		/* the record's; its position is seq - 1 */
	uint64_t end;		/* position behind it */
	uint64_t clean;		/* for tx->clean */
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
	AT(tnext, struct ring_tx, next), AT(tclean, struct ring_tx, clean)

_Static_assert(offsetof(struct rseq, rseq_cs) == 8, "assembly");
_Static_assert(RSEQ_SIG == 0x53053053, "assembly");

#define RSEQ_ENTER							\
	".pushsection __rseq_cs, \"aw\"\n"				\
	".balign 32\n"							\
	"3: .long 0, 0\n"						\
	".quad 1f, 2f - 1f, 4f\n"					\
	".popsection\n"							\
	"leaq 3b(%%rip), %%rax\n"					\
	"movq %%rax, 8(%[rs])\n"					\
	"1:\n"

/* The bytes before the signature make it the operand of an undefined instruction. */
#define RSEQ_LEAVE							\
	"2:\n"								\
	"movq $0, 8(%[rs])\n"						\
	".pushsection __rseq_failure, \"ax\"\n"				\
	".byte 0x0f, 0xb9, 0x3d\n"					\
	".long 0x53053053\n"						\
	"4: jmp %l[aborted]\n"						\
	".popsection\n"

static inline struct rseq *rseq_area(void)
{
	return (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
}

/* 0 committed; -EAGAIN not: interrupted, or the attempt's assumptions no longer hold. */
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
		 "movq %%rsi, %c[tclean](%[tx])\n"
		 "movq %%rdi, %c[tnext](%[tx])\n"
		 "movq %c[header](%[t]), %%rcx\n"
		 "movups %c[first](%[t]), %%xmm0\n"
		 "movups %c[first]+16(%[t]), %%xmm1\n"
		 "movups %c[first]+32(%[t]), %%xmm2\n"
		 "movq %%rcx, 8(%%rdx)\n"
		 "movups %%xmm0, 16(%%rdx)\n"
		 "movups %%xmm1, 32(%%rdx)\n"
		 "movups %%xmm2, 48(%%rdx)\n"
		 "leaq 64(%%rdx), %%rdi\n"
		 "movq %c[alen](%[t]), %%rcx\n"
		 "testq %%rcx, %%rcx\n"
		 "jz 5f\n"
		 "movq %c[a](%[t]), %%rsi\n"
		 "rep movsb\n"
		 "5: movq %c[blen](%[t]), %%rcx\n"
		 "testq %%rcx, %%rcx\n"
		 "jz 6f\n"
		 "movq %c[b](%[t]), %%rsi\n"
		 "rep movsb\n"
		 "6: movq %c[next](%[t]), %%rdi\n"
		 "movq $0, (%%rdi)\n"
		 "movq %c[stale](%[t]), %%rdi\n"
		 "movb $0, (%%rdi)\n"
		 "movq %%rax, (%%rdx)\n"
		 RSEQ_LEAVE
		 : : [rs] "r" (rs), [tx] "r" (tx), [t] "r" (t), TX_OFFSETS,
		     AT(key, struct attempt, key), AT(old, struct attempt, old),
		     AT(seq, struct attempt, seq), AT(end, struct attempt, end),
		     AT(clean, struct attempt, clean), AT(unit, struct attempt, unit),
		     AT(next, struct attempt, next), AT(stale, struct attempt, stale),
		     AT(a, struct attempt, a), AT(alen, struct attempt, alen),
		     AT(b, struct attempt, b), AT(blen, struct attempt, blen),
		     AT(header, struct attempt, header), AT(first, struct attempt, first)
		 : "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi", "xmm0", "xmm1", "xmm2"
		 : lost, aborted);
	return 0;
lost:
	store(&rs->rseq_cs, 0);
aborted:
	return -EAGAIN;
}

/*
 * The same for a record of one unit behind a committed one, with a clean unit behind itself, by
 * the thread that the ring is biased to: all that it needs is in registers, and it writes to one
 * line of the ring, in one go. No other attempt has begun if tx->next is still seq - 1.
 */
static inline int rseq_commit_unit(struct rseq *rs, struct ring_tx *tx, uint64_t seq, void *unit,
				   uint64_t header, const v16 first[3])
{
	asm goto(RSEQ_ENTER
		 "leaq %c[biased](%[rs]), %%rax\n"
		 "cmpq %%rax, %c[owner](%[tx])\n"
		 "jne %l[lost]\n"
		 "leaq -1(%[seq]), %%rax\n"
		 "cmpq %%rax, %c[tnext](%[tx])\n"
		 "jne %l[lost]\n"
		 "movq %%rax, %c[tpos](%[tx])\n"
		 "movq %[seq], %c[tnext](%[tx])\n"
		 "movq %[header], 8(%[unit])\n"
		 "movups %[a], 16(%[unit])\n"
		 "movups %[b], 32(%[unit])\n"
		 "movups %[c], 48(%[unit])\n"
		 "movq %[seq], (%[unit])\n"
		 RSEQ_LEAVE
		 : : [rs] "r" (rs), [tx] "r" (tx), [seq] "r" (seq), [unit] "r" (unit),
		     [header] "r" (header), [a] "x" (first[0]), [b] "x" (first[1]),
		     [c] "x" (first[2]), [biased] "i" (BIASED), TX_OFFSETS
		 : "memory", "cc", "rax"
		 : lost, aborted);
	return 0;
lost:
	store(&rs->rseq_cs, 0);
aborted:
	return -EAGAIN;
}

/* If the calling thread still owns the ring, it does no longer. */
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
