/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt_i.h - a running launch: workers, resident blocks, and a fiber per warp
 *
 * A worker is a thread that takes blocks in order and runs them; a block stays on its worker.  If
 * the kernel has barriers or may spin, each warp is a fiber with a stack of its own; else the warps
 * run one after the other on one stack.  Workers share only the fields marked shared, with a lock,
 * or with turn (accessed by the worker whose block has the turn).
 */
#ifndef SOFTGPU_RT_I_H
#define SOFTGPU_RT_I_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ptx.h"
#include "rt_warp.h"

enum { RT_BARRIERS = 16, RT_MAX_THREADS = 1024, RT_MAX_SLOTS = 1024, RT_MAX_CLUSTER = 16 };

enum rt_state { RT_READY, RT_WAITING, RT_DONE };

struct rt_fiber {
	void *sp;
	char *stack;
	size_t stack_size;
	enum rt_state state;
	const uint32_t *barrier;	/* while RT_WAITING: its number of phases */
	uint32_t phases;		/* when it began to wait */
	bool started;
};

struct rt_barrier {
	uint32_t arrived;	/* threads */
	uint32_t warps;		/* arrivals */
	uint32_t gen;
	uint32_t expected;	/* 0: all live threads */
	uint32_t acc[3], result[3];	/* popc, and, or */
};

/* A cluster's blocks run on one worker, all at once. */
struct rt_cluster {
	uint32_t n;
	uint32_t gen;		/* phases of barrier.cluster */
	bool arrived;		/* somebody has, in this phase */
	struct rt_block *block[RT_MAX_CLUSTER];
};

struct rt_block {
	struct rt_block *next;
	struct rt_worker *worker;
	uint64_t index;
	uint32_t nwarps, ndone;
	bool active;
	uint32_t slot, barriers;	/* with turns: its slot; barriers since it used the turn */
	bool has_turn, wants_turn, paused;	/* paused: warp .at is resumed first */
	uint32_t at;
	struct rt_cluster *cluster, own;	/* cluster: own of its first block */
	uint32_t rank;			/* in the cluster */
	struct rt_warp *warp;
	struct rt_fiber *fiber;
	struct rt_barrier bar[RT_BARRIERS];
	uint8_t *shared;
	uint8_t *local;
	size_t local_size, shared_size;
};

struct rt_run {
	const struct ptx_kernel *k;
	const struct ptx_launch *l;
	rt_entry_fn entry;
	const struct ptx_kernel_info *info;
	bool fibers, spins, late_stores;
	uint64_t nblocks, nclusters;
	uint32_t cluster[3], cluster_size;	/* blocks */
	uint32_t nthreads, nwarps;
	uint64_t local_stride;
	size_t stack_size;
	uint32_t shared_total, shared_size;	/* of the kernel; and with the reserved part */
	uint8_t *params;
	struct rt_run *next;		/* in the list of runs that want helpers; pool lock */
	unsigned int helpers, max_helpers;	/* pool lock */
	uint32_t share;			/* clusters that a worker takes at once */
	bool by_turns;
	_Atomic int abort;		/* shared: a fault, or stop */
	/* Fields that workers write often share no cache line with fields that all read often. */
	_Alignas(64) _Atomic uint64_t taken;	/* shared: next cluster */
	_Alignas(64) _Atomic uint32_t turn;	/* shared: the slot whose turn it is; turns.c */
	_Atomic uint32_t nslots;	/* shared: number of slots */
	_Atomic uint32_t nworkers, asleep;	/* shared: workers of this launch; sleeping ones */
	_Atomic uint64_t claimed[RT_MAX_SLOTS / 64];	/* shared: slots that have a worker */
	uint64_t retired[RT_MAX_SLOTS / 64];	/* turn: slots that get no more blocks */
	uint32_t stale;			/* turn: turns since a block last ended */
	_Alignas(64) pthread_mutex_t lock;	/* fault, print order */
	struct ptx_fault fault;
};

struct rt_worker {
	struct rt_run *run;
	void *main_sp;
	uint64_t next, end;		/* clusters taken but not begun: [next, end) */
	struct rt_block *blocks;	/* all slots */
	struct rt_warp *cur;
	struct rt_fiber *fiber;
	struct rt_fiber one;		/* the only stack, if warps are no fibers */
	volatile bool in_kernel;
	bool progress;
	uint32_t nslots, looked;	/* with turns: slots that it owns; the turn last seen */
	unsigned int stale;		/* rounds since a warp ended or a block was started */
	bool aborted;
};

#define EACH(mask, lane)							\
	for (uint32_t m_ = (mask), lane; m_ && (lane = __builtin_ctz(m_), 1); m_ &= m_ - 1)

void rt_switch(void **save, void *to);
void rt_fault(struct rt_warp *w, enum ptx_fault_kind kind, uint64_t addr, int lane,
	      const char *text) __attribute__((noreturn));
uint8_t *rt_resolve(struct rt_warp *w, uint64_t a, uint32_t size, int space, int lane, bool write);
uint8_t *rt_resolve_bytes(struct rt_warp *w, uint64_t a, uint32_t size, uint32_t align, int space,
			  int lane, bool write);
uint64_t rt_atom_one(uint8_t *mem, uint32_t size, int op, int ty, uint64_t b, uint64_t c);
void rt_complete_tx(struct rt_warp *w, int lane, uint64_t a, uint32_t bytes);
uint64_t rt_peer(uint64_t a, uint32_t rank);
void rt_block_init(struct rt_worker *wk, struct rt_block *b, uint64_t index);
float rt_half_value(uint16_t h, bool bf);
uint16_t rt_half_bits(float f, bool bf);
void rt_record(struct rt_run *r, enum ptx_fault_kind kind, uint64_t addr, struct rt_warp *w, int lane,
	       const char *text);
struct rt_block *rt_block_new(struct rt_worker *wk);
bool rt_round(struct rt_worker *wk, struct rt_block *b);
void rt_to_main(struct rt_worker *wk);
void rt_worker_run(struct rt_run *r);
/* turns.c */
void rt_turns_init(struct rt_run *r);
void rt_turns_run(struct rt_worker *wk);
void rt_turn(struct rt_warp *w);
void rt_turn_end(struct rt_block *b, bool loops);
void rt_turn_barrier(struct rt_block *b);
void rt_turn_look(struct rt_block *b);
void rt_help(struct rt_run *r, unsigned int n);
void rt_unhelp(struct rt_run *r);
unsigned int rt_workers(void);

struct ptx_kernel {
	struct ptx_module *m;
	const struct ptx_entry_info *entry;
	struct ptx_kernel_info info;
	bool spins, calls;
	void *code;
	size_t code_size;
	rt_entry_fn fn;
};

/* Loads a compiled object: elf.c. */
int ptx_elf_load(const void *obj, size_t len, void **code, size_t *size, rt_entry_fn *entry,
		 char *err, size_t errlen);
void ptx_elf_free(void *code, size_t size);

#endif
