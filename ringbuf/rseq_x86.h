/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rseq_x86.h - the two restartable sequences of the producers (rseq(2)), for x86-64
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

/* One attempt to commit a record; offsets are used in the assembly below. */
struct attempt {
	uint64_t key;		/* 0: what tx->owner must be */
	uint64_t old;		/* 8: what tx->pos must be */
	uint64_t seq;		/* 16: the record's; its position is seq - 1 */
	void *unit;		/* 24 */
	void *next;		/* 32: unit behind the record, to be made clean */
	const void *a;		/* 40: payload behind the first unit */
	uint64_t alen;		/* 48 */
	const void *b;		/* 56 */
	uint64_t blen;		/* 64 */
	uint64_t units;		/* 72 */
	uint64_t header;	/* 80: op, cpl and len, as they lie in struct singvgpu_rec */
	uint8_t *stale;		/* 88: next's */
	v16 first[3];		/* 96: the payload's first 48 bytes */
};

_Static_assert(offsetof(struct attempt, units) == 72, "assembly");
_Static_assert(offsetof(struct attempt, stale) == 88, "assembly");
_Static_assert(offsetof(struct attempt, first) == 96, "assembly");
_Static_assert(offsetof(struct ring_tx, owner) == 8, "assembly");
_Static_assert(offsetof(struct ring_tx, pos) == 16, "assembly");
_Static_assert(offsetof(struct ring_tx, units) == 24, "assembly");
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
		 "movq 0(%[t]), %%rax\n"
		 "cmpq %%rax, 8(%[tx])\n"
		 "jne %l[lost]\n"
		 "movq 8(%[t]), %%rax\n"
		 "cmpq %%rax, 16(%[tx])\n"
		 "jne %l[lost]\n"
		 "movq 24(%[t]), %%rdx\n"
		 "movq 16(%[t]), %%rax\n"
		 "cmpq %%rax, (%%rdx)\n"
		 "je %l[lost]\n"
		 "leaq -1(%%rax), %%rcx\n"
		 "movq %%rcx, 16(%[tx])\n"
		 "movq 72(%[t]), %%rcx\n"
		 "movq %%rcx, 24(%[tx])\n"
		 "movq 80(%[t]), %%rcx\n"
		 "movups 96(%[t]), %%xmm0\n"
		 "movups 112(%[t]), %%xmm1\n"
		 "movups 128(%[t]), %%xmm2\n"
		 "movq %%rcx, 8(%%rdx)\n"
		 "movups %%xmm0, 16(%%rdx)\n"
		 "movups %%xmm1, 32(%%rdx)\n"
		 "movups %%xmm2, 48(%%rdx)\n"
		 "leaq 64(%%rdx), %%rdi\n"
		 "movq 48(%[t]), %%rcx\n"
		 "testq %%rcx, %%rcx\n"
		 "jz 5f\n"
		 "movq 40(%[t]), %%rsi\n"
		 "rep movsb\n"
		 "5: movq 64(%[t]), %%rcx\n"
		 "testq %%rcx, %%rcx\n"
		 "jz 6f\n"
		 "movq 56(%[t]), %%rsi\n"
		 "rep movsb\n"
		 "6: movq 32(%[t]), %%rdi\n"
		 "movq $0, (%%rdi)\n"
		 "movq 88(%[t]), %%rdi\n"
		 "movb $0, (%%rdi)\n"
		 "movq %%rax, (%%rdx)\n"
		 RSEQ_LEAVE
		 : : [rs] "r" (rs), [tx] "r" (tx), [t] "r" (t)
		 : "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi", "xmm0", "xmm1", "xmm2"
		 : lost, aborted);
	return 0;
lost:
	store(&rs->rseq_cs, 0);
aborted:
	return -EAGAIN;
}

/*
 * The same for a record of one unit with a clean one behind it (else -EAGAIN), and with all that
 * it needs in registers. It writes to one line of the ring, in one go.
 */
static inline int rseq_commit_unit(struct ring_tx *tx, uint64_t key, uint64_t old, uint64_t seq,
				   void *unit, const uint8_t *stale, uint64_t header,
				   const v16 first[3])
{
	struct rseq *rs = rseq_area();

	asm goto(RSEQ_ENTER
		 "cmpq %[key], 8(%[tx])\n"
		 "jne %l[lost]\n"
		 "cmpq %[old], 16(%[tx])\n"
		 "jne %l[lost]\n"
		 "cmpq %[seq], (%[unit])\n"
		 "je %l[lost]\n"
		 "cmpb $0, (%[stale])\n"
		 "jne %l[lost]\n"
		 "leaq -1(%[seq]), %%rax\n"
		 "movq %%rax, 16(%[tx])\n"
		 "movq $1, 24(%[tx])\n"
		 "movq %[header], 8(%[unit])\n"
		 "movups %[a], 16(%[unit])\n"
		 "movups %[b], 32(%[unit])\n"
		 "movups %[c], 48(%[unit])\n"
		 "movq %[seq], (%[unit])\n"
		 RSEQ_LEAVE
		 : : [rs] "r" (rs), [tx] "r" (tx), [key] "r" (key), [old] "r" (old),
		     [seq] "r" (seq), [unit] "r" (unit), [stale] "r" (stale),
		     [header] "r" (header), [a] "x" (first[0]), [b] "x" (first[1]),
		     [c] "x" (first[2])
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
		 "cmpq %[key], 8(%[tx])\n"
		 "jne %l[lost]\n"
		 "movq $0, 8(%[tx])\n"
		 RSEQ_LEAVE
		 : : [rs] "r" (rs), [tx] "r" (tx), [key] "r" (key)
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
