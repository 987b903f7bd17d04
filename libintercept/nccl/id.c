// SPDX-License-Identifier: Apache-2.0
/*
 * id.c - unique ids: 128 random bytes, by which the ranks of a communicator meet
 *
 * NCCL_COMM_ID is an address in NCCL, where rank 0 listens. Here ids that it makes are its text: the
 * same on all ranks, whoever calls ncclGetUniqueId.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "nccl_i.h"

#define NAMED "singvgpu NCCL_COMM_ID "

static uint64_t used[SV_DEVICES_MAX];	/* of such ids, by device; atomic */

ncclResult_t id_fresh(ncclUniqueId *out)
{
	size_t n = 0;
	ssize_t r;

	while (n < sizeof(*out)) {
		r = getrandom((char *)out + n, sizeof(*out) - n, 0);
		if (r < 0 && errno != EINTR)
			return failed(ncclSystemError, "no random bytes: %s", strerror(errno));
		n += r > 0 ? r : 0;
	}
	return ncclSuccess;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	const char *name = getenv("NCCL_COMM_ID");

	TRY(given(id, "ncclGetUniqueId", "uniqueId"));
	if (!name || !*name)
		return id_fresh(id);
	memset(id, 0, sizeof(*id));
	if (snprintf(id->internal, sizeof(*id) - sizeof(uint64_t), NAMED "%s", name) >=
	    (int)(sizeof(*id) - sizeof(uint64_t)))
		return failed(ncclInvalidArgument, "ncclGetUniqueId: NCCL_COMM_ID is too long");
	return ncclSuccess;
}

void id_use(const ncclUniqueId *id, int device, uint8_t out[SV_NCCL_ID_BYTES])
{
	uint64_t n;

	memcpy(out, id, SV_NCCL_ID_BYTES);
	if (memcmp(id, NAMED, strlen(NAMED)))
		return;
	n = __atomic_fetch_add(&used[device % SV_DEVICES_MAX], 1, __ATOMIC_RELAXED);
	memcpy(out + SV_NCCL_ID_BYTES - sizeof(n), &n, sizeof(n));
}
