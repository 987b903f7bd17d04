// SPDX-License-Identifier: Apache-2.0
/*
 * query.c - what is known of the library and of a communicator
 */
#include <string.h>

#include "nccl_i.h"

API ncclResult_t ncclGetVersion(int *version)
{
	TRY(given(version, "ncclGetVersion", "version"));
	*version = VERSION_MAJOR * 10000 + VERSION_MINOR * 100 + VERSION_PATCH;
	return ncclSuccess;
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* The environment is read whenever it is needed. */
API void ncclResetDebugInit(void)
{
}

API void ncclResetDebugInitInternal(void)
{
}

API ncclResult_t ncclCommCount(const ncclComm_t c, int *count)
{
	TRY(comm_ready(c, "ncclCommCount"));
	TRY(given(count, "ncclCommCount", "count"));
	*count = c->ranks;
	return ncclSuccess;
}

API ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *device)
{
	TRY(comm_ready(c, "ncclCommCuDevice"));
	TRY(given(device, "ncclCommCuDevice", "device"));
	*device = c->at.device;
	return ncclSuccess;
}

API ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank)
{
	TRY(comm_ready(c, "ncclCommUserRank"));
	TRY(given(rank, "ncclCommUserRank", "rank"));
	*rank = c->rank;
	return ncclSuccess;
}

/* ncclCommProperties_t of 2.32, which has grown at its end alone. */
struct layout {
	size_t size;
	unsigned int magic, version;
	int rank, ranks, cuda_device, nvml_device;
	bool device_api, multimem;
	int gin_type, lsa_teams;
	bool host_rma;
	int railed_gin_type;
	uint64_t hash;
	int gin_min_stride, gin_connection;
	bool gin[64];
	size_t dev_comm_size;
	bool cft, cft_multicast, cft_counted;
};

API ncclResult_t ncclCommQueryProperties(ncclComm_t c, struct ncclCommProperties *out)
{
	static const char call[] = "ncclCommQueryProperties";
	struct layout l, p = { 0 };

	TRY(comm_ready(c, call));
	TRY(given(out, call, "props"));
	memcpy(&l, out, offsetof(struct layout, rank));
	if (l.magic != API_MAGIC || l.size < offsetof(struct layout, rank))
		return failed(ncclInvalidArgument, "%s: props was not initialized with its INITIALIZER", call);
	p.size = l.size;
	p.magic = l.magic;
	p.version = l.version;
	p.rank = c->rank;
	p.ranks = c->ranks;
	p.cuda_device = p.nvml_device = c->at.device;
	p.lsa_teams = c->ranks;		/* no device reaches another's memory */
	p.hash = c->hash;
	memcpy(out, &p, l.size < sizeof(p) ? l.size : sizeof(p));
	return ncclSuccess;
}

/* A communicator has no device memory. 1: whether it is suspended. */
API ncclResult_t ncclCommMemStats(ncclComm_t c, ncclCommMemStat_t stat, uint64_t *value)
{
	TRY(comm_ready(c, "ncclCommMemStats"));
	TRY(given(value, "ncclCommMemStats", "value"));
	if ((int)stat < 0 || (int)stat > 3)
		return failed(ncclInvalidArgument, "ncclCommMemStats: %d is no statistic", stat);
	*value = 0;
	return ncclSuccess;
}

/* -------------------------------------------------------------------------------- teams */

static struct ncclTeam team(ncclComm_t c, bool all)
{
	struct ncclTeam t = { 0 };

	if (comm_check(c, "a team"))
		return t;
	t.nRanks = all ? c->ranks : 1;
	t.rank = all ? c->rank : 0;
	t.stride = 1;
	return t;
}

API struct ncclTeam ncclTeamWorld(ncclComm_t c)
{
	return team(c, true);
}

/* The ranks whose memory a device reaches: itself. */
API struct ncclTeam ncclTeamLsa(ncclComm_t c)
{
	return team(c, false);
}

/* The ranks with the same place in their teams of that kind. */
API struct ncclTeam ncclTeamRail(ncclComm_t c)
{
	return team(c, true);
}

API struct ncclTeam ncclTeamCft(ncclComm_t c, int mode)
{
	(void)mode;
	return team(c, false);
}

API struct ncclTeam ncclTeamCftMultimem(ncclComm_t c)
{
	return team(c, false);
}

API int ncclTeamRankToWorld(ncclComm_t c, struct ncclTeam t, int rank)
{
	return comm_check(c, "ncclTeamRankToWorld") ? -1 : c->rank + (rank - t.rank) * t.stride;
}

API int ncclTeamRankToLsa(ncclComm_t c, struct ncclTeam t, int rank)
{
	return comm_check(c, "ncclTeamRankToLsa") ? -1 : (rank - t.rank) * t.stride;
}

API int ncclLLA2ACalcSlots(int elements, int size)
{
	(void)elements;
	(void)size;
	return 0;
}
