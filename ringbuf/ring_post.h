/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_post.h - submission of a short record without a function call, for generated stubs
 *
 * ring_post() is ring_submit() for a payload of up to 48 bytes in six words. Its common case is
 * one restartable sequence (rseq(2)) inlined into the caller: one thread, room, an open gate, the
 * consumer awake. Four comparisons detect every other case, in which the library is called;
 * ring_i.h explains what they compare and why that is enough.
 *
 * Between label 1 and label 2 a signal, a preemption, a migration or a membarrier of another
 * thread sends the thread to label 4; the store in front of label 2 is the sequence's effect.
 * What precedes it may have been done in part and must do no harm then.
 */
#ifndef RING_POST_H
#define RING_POST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/rseq.h>

#include "ring.h"

#define RING_POST_MAX	48u

/* The beginning of struct ring, for this header alone. */
struct ring_post {
	struct singvgpu_ctl *ctl;
	uint8_t *units;
	uint32_t mask;
	uint32_t payload_max;
	uint64_t owner __attribute__((aligned(64)));
	uint64_t next;
	uint64_t end;
	uint64_t exact;
};

typedef uint64_t ring_pair __attribute__((vector_size(16)));

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

/*
 * Commits a record of one unit, with header as the second word of its struct singvgpu_rec; false:
 * nothing was done. Prefetches the unit 32 ahead for writing; past the ring's end that is the
 * arena, which does no harm.
 */
static inline __attribute__((always_inline)) bool
ring_post_unit(struct ring *r, uint64_t header, ring_pair a, ring_pair b, ring_pair c,
	       uint64_t *seq)
{
	struct rseq *rs = rseq_area();
	uint64_t s;

	asm volatile goto(RSEQ_ENTER
		 "leaq 1(%[rs]), %%rax\n"	/* BIASED */
		 "cmpq %%rax, %c[owner](%[r])\n"
		 "jne %l[not]\n"
		 "movq %c[ctl](%[r]), %%rcx\n"
		 "movq %c[cons](%%rcx), %%rax\n"
		 "cmpq %%rax, %c[exact](%[r])\n"
		 "jne %l[not]\n"
		 "movq %c[next](%[r]), %%rax\n"
		 "cmpq %c[end](%[r]), %%rax\n"
		 "jae %l[not]\n"
		 "movl %c[mask](%[r]), %%ecx\n"
		 "andq %%rax, %%rcx\n"
		 "shlq $6, %%rcx\n"
		 "addq %c[units](%[r]), %%rcx\n"
		 "cmpq %%rax, -64(%%rcx)\n"
		 "jne %l[not]\n"
		 "prefetchw 2048(%%rcx)\n"
		 "incq %%rax\n"
		 "movq %%rax, %c[next](%[r])\n"
		 "movq %[header], 8(%%rcx)\n"
		 "movups %[a], 16(%%rcx)\n"
		 "movups %[b], 32(%%rcx)\n"
		 "movups %[c], 48(%%rcx)\n"
		 "movq %%rax, (%%rcx)\n"
		 RSEQ_LEAVE
		 : "=&a" (s)
		 : [rs] "r" (rs), [r] "r" (r), [header] "r" (header), [a] "x" (a), [b] "x" (b),
		   [c] "x" (c), [ctl] "i" (offsetof(struct ring_post, ctl)),
		   [units] "i" (offsetof(struct ring_post, units)),
		   [mask] "i" (offsetof(struct ring_post, mask)),
		   [owner] "i" (offsetof(struct ring_post, owner)),
		   [next] "i" (offsetof(struct ring_post, next)),
		   [end] "i" (offsetof(struct ring_post, end)),
		   [exact] "i" (offsetof(struct ring_post, exact)),
		   [cons] "i" (offsetof(struct singvgpu_ctl, cons))
		 : "memory", "cc", "rcx"
		 : not, aborted);
	*seq = s;
	return true;
not:
	__atomic_store_n(&rs->rseq_cs, 0, __ATOMIC_RELAXED);
aborted:
	return false;
}

/* After a commit: whether the state is unchanged, so that the consumer need not be woken. */
static inline bool ring_post_quiet(const struct ring *r)
{
	const struct ring_post *p = (const struct ring_post *)r;
	typedef const uint64_t __attribute__((may_alias)) both;

	/* cons and life are adjacent and aligned: one load. It stays behind the commit. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n((both *)&p->ctl->cons, __ATOMIC_RELAXED) ==
	       __atomic_load_n(&p->exact, __ATOMIC_RELAXED);
}

/* The library's part, for this header alone. */
int ring_post_slow(struct ring *r, uint16_t op, uint32_t len, const uint64_t w[6]);
int ring_post_wake(struct ring *r);

/*
 * ring_post: ring_submit of the first len <= RING_POST_MAX bytes of six words; the bytes behind len
 * are zeros. Compute the words in registers: a load of a word that was just stored in pieces waits
 * for those stores. Returns what ring_submit does.
 */
static inline __attribute__((always_inline)) int
ring_post(struct ring *r, uint16_t op, uint32_t len, uint64_t w0, uint64_t w1, uint64_t w2,
	  uint64_t w3, uint64_t w4, uint64_t w5)
{
	uint64_t seq;

	if (__builtin_expect(op != SINGVGPU_OP_PAD && len <= RING_POST_MAX &&
			     ring_post_unit(r, op | (uint64_t)len << 32, (ring_pair){ w0, w1 },
					    (ring_pair){ w2, w3 }, (ring_pair){ w4, w5 }, &seq), 1))
		return __builtin_expect(ring_post_quiet(r), 1) ? 0 : ring_post_wake(r);
	return ring_post_slow(r, op, len, (const uint64_t[6]){ w0, w1, w2, w3, w4, w5 });
}

#endif /* RING_POST_H */
