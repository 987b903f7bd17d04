/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt_warp.h - the interface of compiled code and runtime: a warp's state, codes of runtime calls
 *
 * Compiled code contains offsets into these structs: a change of layout must change PTX_ABI, and so
 * the cache's keys.  A warp belongs to the worker thread that runs its block.
 */
#ifndef SOFTGPU_RT_WARP_H
#define SOFTGPU_RT_WARP_H

#include <stdint.h>

#define PTX_ABI "softgpu-4"

struct rt_block;

struct rt_warp {
	/* scratch between compiled code and runtime calls; vectors are 64-byte aligned */
	uint64_t addr[32];
	union {
		uint8_t b[4096];
		uint32_t u32[1024];
		uint64_t u64[512];
		float f32[1024];
		double f64[512];
	} x;				/* operands: operand k at byte k * 1024 */
	union {
		uint8_t b[2048];
		uint32_t u32[512];
		uint64_t u64[256];
		float f32[512];
		double f64[256];
	} y;				/* results: element e of lane l at (e * 32 + l) * size */
	uint32_t tid[3][32];
	uint32_t ctaid[3], ntid[3], nctaid[3];
	uint32_t cluster[3];		/* blocks of a cluster */
	uint32_t explicit_cluster;	/* the kernel or the launch says how many */
	uint32_t warpid, nwarpid, smid, nsmid;
	uint32_t dyn_shared, total_shared;
	uint32_t alive;			/* lanes that have not exited */
	int32_t budget;			/* back edges until rt_tick/rt_yield */
	uint32_t late;			/* lanes that have not written since a barrier: rt_late() */
	uint64_t gridid;
	uint64_t envreg;		/* %envreg1, %envreg2 */
	uint8_t *shared;
	uint64_t shared_size;
	uint8_t *local;			/* lane l's byte b: local + l * local_stride + b */
	uint64_t local_stride;
	const uint8_t *params;
	uint64_t param_size;
	const uint64_t *vars;
	uint64_t lo, span;		/* busiest range: [lo, lo + span + 4096) */
	struct rt_block *block;
	uint32_t cc;			/* carry flags */
	uint32_t at_cluster;		/* lanes that have arrived at the cluster's barrier */
} __attribute__((aligned(64)));

/*
 * One activation of a compiled function: groups of lanes that wait at its stubs, which are numbered
 * in execution order.
 */
struct rt_frame {
	uint32_t mask;		/* out of rt_pick: the group to run */
	uint32_t minpend;	/* out: lowest stub where a group waits, or RT_NONE */
	uint32_t forced;	/* out: do not wait for more lanes at this collective */
	uint32_t nstubs;
	int32_t defer;		/* in: the stub whose group waits for other lanes, or -1 */
	int32_t rotate;		/* in: the stub whose group is set aside, or -1 */
	uint32_t unused[10];
	uint32_t pend[];	/* [nstubs] lanes; then [nstubs] lanes when deferred */
};

_Static_assert(sizeof(struct rt_frame) == 64, "compiled code puts pend[] there");

#define RT_NONE 0xffffffffu

enum {
	RT_SHARED_SLACK = 256,		/* mapped bytes behind shared memory: loads may be wider */
	RT_SHARED_RESERVED = 1024,	/* at its end, if a kernel reads %reserved_smem_offset_* */
};

typedef void (*rt_entry_fn)(struct rt_warp *w, uint32_t mask, uint64_t lsp);

/* Memory access descriptor. */
enum rt_space { RT_GLOBAL, RT_SHARED, RT_LOCAL, RT_GENERIC, RT_PARAM };
#define RT_DESC(size, n, space) ((size) | (n) << 8 | (space) << 16)

enum rt_atom_op {
	RT_ADD, RT_MIN, RT_MAX, RT_AND, RT_OR, RT_XOR, RT_EXCH, RT_CAS, RT_INC, RT_DEC,
};
enum rt_atom_type {
	RT_U32, RT_S32, RT_U64, RT_S64, RT_F32, RT_F64, RT_F16, RT_BF16, RT_F16X2, RT_BF16X2,
	RT_B16, RT_B128,
};

/* Arithmetic that compiled code leaves to C: rt_fop(w, n, op, mode). */
enum rt_fop {
	RT_F_ADD32, RT_F_SUB32, RT_F_MUL32, RT_F_DIV32, RT_F_SQRT32, RT_F_FMA32,
	RT_F_ADD64, RT_F_SUB64, RT_F_MUL64, RT_F_DIV64, RT_F_SQRT64, RT_F_FMA64,
	RT_F_64TO32, RT_F_32TO16, RT_F_32TOBF16, RT_F_64TO16,
	RT_F_S32TO32, RT_F_U32TO32, RT_F_S64TO32, RT_F_U64TO32, RT_F_S64TO64, RT_F_U64TO64,
	RT_F_S64TO16, RT_F_U64TO16, RT_F_32TOTF32,
	RT_F_32TOE4M3, RT_F_32TOE5M2, RT_F_E4M3TO16, RT_F_E5M2TO16, RT_F_16TOE4M3, RT_F_16TOE5M2,
	RT_F_DIVU32, RT_F_DIVS32, RT_F_DIVU64, RT_F_DIVS64,
	RT_F_REMU32, RT_F_REMS32, RT_F_REMU64, RT_F_REMS64,
	RT_F_FNS,
	RT_F_COUNT
};
enum rt_round { RT_RN, RT_RZ, RT_RM, RT_RP, RT_RNA };

/* Textures and surfaces: rt_tex(w, mask, desc). */
enum rt_tex {
	RT_TEX_1D, RT_TEX_2D, RT_TEX_3D, RT_TEX_A1D, RT_TEX_A2D, RT_TEX_CUBE, RT_TEX_ACUBE,
	RT_TEX_GEOM = 7,
	RT_TEX_INT = 1 << 3,		/* coordinates are texels */
	RT_TEX_GATHER = 1 << 4,
	RT_TEX_LEVEL = 1 << 5,
	RT_TEX_GRAD = 1 << 6,
	RT_TEX_COMP = 8,		/* shift: the component of a gather */
	RT_SURF_TRAP = 0, RT_SURF_CLAMP = 1 << 10, RT_SURF_ZERO = 2 << 10,
	RT_SURF_MODE = 3 << 10,
};

/* mbarrier: rt_mbarrier(w, mask, op, space). */
enum rt_mbarrier {
	RT_MB_INIT, RT_MB_INVAL, RT_MB_EXPECT, RT_MB_COMPLETE, RT_MB_ARRIVE, RT_MB_ARRIVE_EXPECT,
	RT_MB_DROP, RT_MB_DROP_EXPECT, RT_MB_TEST, RT_MB_TEST_PARITY,
};

/* A shared variable of this type, and the state that arriving returns. */
enum {
	RT_MB_COUNT = 20,		/* bits of a count: pending arrivals */
	RT_MB_EXPECTED = 20,		/* shift: arrivals that each phase expects */
	RT_MB_TX = 40,			/* shift: bytes to come, signed */
	RT_MB_TX_BITS = 22,
	RT_MB_VALID = 62,		/* bit: initialised */
	RT_MB_PHASE = 63,		/* bit: parity of the current phase */
};

/* Bulk copies: rt_bulk(w, mask, desc), rt_tensor(w, mask, desc, rank). */
enum {
	RT_BULK_SRC = 4,		/* shift: enum rt_space; the destination's is in front */
	RT_BULK_TX = 1 << 8,		/* completes on an mbarrier */
	RT_BULK_MASK = 1 << 9,		/* copies some of 16 bytes */
	RT_BULK_REDUCE = 1 << 10,	/* instead of copying */
	RT_BULK_MULTICAST = 1 << 11,	/* into several blocks of the cluster */
	RT_TENSOR_STORE = 1 << 24,	/* from shared memory */
	RT_BULK_OP = 12, RT_BULK_TYPE = 16, RT_BULK_SIZE = 20,	/* shifts, of a reduction */
};

enum rt_trap_kind { RT_TRAP_TRAP, RT_TRAP_PC, RT_TRAP_INSN };

struct rt_symbol {
	const char *name;
	void *addr;
};
extern const struct rt_symbol rt_symbols[];	/* ends in a NULL name */

#endif
