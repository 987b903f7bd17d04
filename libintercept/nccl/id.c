// SPDX-License-Identifier: Apache-2.0
/*
 * id.c - unique ids: random bytes, by which the ranks of a communicator meet, and who made them
 *
 * NCCL's ranks meet in the process that made the id: with an id whose maker has ended they get an error. Here they
 * would wait, so the last bytes of an id say who made it:
 *
 *   0 … 103 random   104 … 111 MAKER   112 … 119 pid   120 … 127 number of the pid namespace
 *
 * A restored job has another namespace. With an id of its past its ranks wait, as with one of a container.
 *
 * NCCL_COMM_ID is an address in NCCL, where rank 0 listens. Here ids that it makes are its text: the
 * same on all ranks, whoever calls ncclGetUniqueId.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nccl_i.h"

#define NAMED "singvgpu NCCL_COMM_ID "
#define MAKER 0x6d61646562790a01ull

struct made {
	uint8_t random[SV_NCCL_ID_BYTES - 24];
	uint64_t maker, pid, space;
};

_Static_assert(sizeof(struct made) == SV_NCCL_ID_BYTES && sizeof(ncclUniqueId) == SV_NCCL_ID_BYTES, "an id");

static uint64_t used[SV_DEVICES_MAX];	/* of such ids, by device; atomic */

/* 0: not known. */
static uint64_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

ncclResult_t id_fresh(ncclUniqueId *out)
{
	struct made id = { .maker = MAKER, .pid = getpid(), .space = pid_namespace() };
	size_t n = 0;
	ssize_t r;

	while (n < sizeof(id.random)) {
		r = getrandom(id.random + n, sizeof(id.random) - n, 0);
		if (r < 0 && errno != EINTR)
			return failed(ncclSystemError, "no random bytes: %s", strerror(errno));
		n += r > 0 ? r : 0;
	}
	memcpy(out, &id, sizeof(id));
	return ncclSuccess;
}

ncclResult_t id_check(const ncclUniqueId *id, const char *call)
{
	struct made m;

	memcpy(&m, id, sizeof(m));
	if (m.maker != MAKER || !m.space || m.space != pid_namespace() || m.pid < 1 || m.pid > INT_MAX ||
	    !kill(m.pid, 0) || errno != ESRCH)
		return ncclSuccess;
	return failed(ncclRemoteError, "%s: process %d, which made its unique id, has ended, so nobody will come. "
		      "An id is of one communicator: was this one left in a store by ranks that were started "
		      "before? (docs/pytorch.md, \"Ranks that torchrun starts again\")", call, (int)m.pid);
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
