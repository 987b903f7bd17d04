// SPDX-License-Identifier: Apache-2.0
/*
 * redop.c - operators of reductions: NCCL's own, and pre-multiplied sums of a communicator
 */
#include <stdlib.h>
#include <string.h>

#include "nccl_i.h"

ncclResult_t redop_get(struct ncclComm *c, const char *call, int op, int type, struct sv_coll_call *out)
{
	struct redop r = { 0 };

	if (likely(op >= 0 && op < ncclNumOps)) {
		out->op = op;
		return ncclSuccess;
	}
	lock_take(&c->lock);
	if (op >= ncclNumOps && op - ncclNumOps < c->redops)
		r = c->redop[op - ncclNumOps];
	lock_drop(&c->lock);
	if (!r.live)
		return failed(ncclInvalidArgument, "%s: %d is no operator of this communicator", call, op);
	if (r.type != type)
		return failed(ncclInvalidArgument, "%s: the operator is of datatype %d, the call of %d", call,
			      r.type, type);
	out->op = SV_COLL_PREMULSUM;
	out->scale = r.scale;
	out->factor = r.factor;
	return ncclSuccess;
}

/* The index of a new operator; -1: no memory. The communicator's lock is held. */
static int free_index(struct ncclComm *c)
{
	struct redop *more;
	int i, room;

	assert_held(&c->lock);
	for (i = 0; i < c->redops; i++)
		if (!c->redop[i].live)
			return i;
	room = c->redops ? 2 * c->redops : 4;
	more = realloc(c->redop, room * sizeof(*more));
	if (!more)
		return -1;
	memset(more + c->redops, 0, (room - c->redops) * sizeof(*more));
	c->redop = more;
	c->redops = room;
	return i;
}

API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
					  ncclScalarResidence_t residence, ncclComm_t c)
{
	static const char call[] = "ncclRedOpCreatePreMulSum";
	struct redop r = { .live = true, .type = type, .scale = SV_COLL_FACTOR_AT,
			   .factor = (uintptr_t)scalar };
	int i;

	TRY(comm_ready(c, call));
	TRY(given(op, call, "op"));
	TRY(given(scalar, call, "scalar"));
	if ((int)type < 0 || (int)type >= TYPES)
		return failed(ncclInvalidArgument, "%s: %d is no datatype", call, type);
	if (residence == ncclScalarHostImmediate) {
		r.scale = SV_COLL_FACTOR;
		r.factor = 0;
		memcpy(&r.factor, scalar, type_size[type]);
	} else if (residence != ncclScalarDevice) {
		return failed(ncclInvalidArgument, "%s: %d is no residence", call, residence);
	}
	lock_take(&c->lock);
	i = free_index(c);
	if (i >= 0)
		c->redop[i] = r;
	lock_drop(&c->lock);
	if (i < 0)
		return failed(ncclSystemError, "%s: out of memory", call);
	*op = (ncclRedOp_t)(ncclNumOps + i);
	return ncclSuccess;
}

API ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t c)
{
	int i = (int)op - ncclNumOps;
	bool live = false;

	TRY(comm_check(c, "ncclRedOpDestroy"));
	if (i < 0)
		return failed(ncclInvalidArgument, "ncclRedOpDestroy: %d is built in, or no operator", op);
	lock_take(&c->lock);
	if (i < c->redops) {
		live = c->redop[i].live;
		c->redop[i].live = false;
	}
	lock_drop(&c->lock);
	return live ? ncclSuccess : failed(ncclInvalidArgument, "ncclRedOpDestroy: %d is no operator of "
					   "this communicator", op);
}
