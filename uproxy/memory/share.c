// SPDX-License-Identifier: Apache-2.0
/*
 * share.c - device memory as file descriptors, received from the client and sent to it
 *
 * The proxy takes a descriptor from the client by pidfd_getfd(2), which needs the rights of
 * ptrace(2); the client grants them for the time of the call. It sends one to the client through a
 * socket that the client has made for that.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"
#include "device_memory.h"
#include "handle.h"
#include "log.h"

void share_client(struct sv_session *s, int pidfd)
{
	if (s->client_pidfd > 0)
		close(s->client_pidfd);
	s->client_pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
}

/* A copy of the client's fd, or -errno. */
static int take(struct call *k, int fd)
{
	struct sv_session *s = k->c.session;
	int own = -ESRCH;

	if (s->client_pidfd > 0) {
		own = syscall(SYS_pidfd_getfd, s->client_pidfd, fd, 0);
		own = own < 0 ? -errno : own;
	}
	if (own == -EPERM || own == -ENOSYS)
		tell("process %d cannot share memory: the kernel does not let its proxy take a file "
		     "descriptor of it (pidfd_getfd: %s)", s->client, strerror(-own));
	return own;
}

static CUresult status(int err)
{
	switch (err) {
	case -EBADF:
		return CUDA_ERROR_INVALID_VALUE;
	case -EPERM: case -ENOSYS:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
}

/* Runs on a worker, since the client's socket may be full. */
int do_mem_export(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_mem_share *a = k->c.data;
	int sock, fd = -1, rc;
	uint64_t real;

	if (a->pad)
		return sv_bad(&k->c, "padding of memory to export");
	rc = handle_real(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle, &real);
	if (rc)
		return sv_fails(&k->c, rc, "handle of memory to export");
	sock = take(k, a->fd);
	if (sock < 0) {
		k->c.status = status(sock);
		return 0;
	}
	__atomic_store_n(&s->shares, true, __ATOMIC_RELAXED);
	k->c.status = s->hal.drv.cuMemExportToShareableHandle(&fd, real,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (!k->c.status) {
		if (ring_pass_fd(sock, fd))
			k->c.status = CUDA_ERROR_OPERATING_SYSTEM;
		close(fd);
	}
	close(sock);
	return 0;
}

int do_mem_import(struct call *k)
{
	struct sv_session *s = k->c.session;
	const struct sv_mem_share *a = k->c.data;
	struct sv_mem_imported in = { 0 };
	CUmemGenericAllocationHandle real;
	struct stat st;
	int fd, rc;

	if (a->pad)
		return sv_bad(&k->c, "padding of memory to import");
	if (common_on)
		return fails(k, CUDA_ERROR_NOT_SUPPORTED);
	rc = sv_reserve(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle);
	if (rc < 0)
		return sv_fails(&k->c, rc, "handle of memory to import");
	if (rc) {
		k->c.status = rc;
		return 0;
	}
	fd = take(k, a->fd);
	if (fd >= 0) {
		__atomic_store_n(&s->shares, true, __ATOMIC_RELAXED);
		k->c.status = s->hal.drv.cuMemImportFromShareableHandle(&real, (void *)(intptr_t)fd,
						CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		if (!fstat(fd, &st) && S_ISREG(st.st_mode))
			in.len = st.st_size;
		close(fd);
	} else {
		k->c.status = status(fd);
	}
	if (k->c.status) {
		sv_unreserve(s, SV_T_CUmemGenericAllocationHandle_v1, a->handle);
		return 0;
	}
	memcpy(k->c.reply, &in, sizeof(in));
	k->c.reply_len = sizeof(in);
	/* The budget of the process that made it counts the memory. */
	return window_add_vmm(k, a->handle, real, 0);
}
