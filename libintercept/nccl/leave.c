// SPDX-License-Identifier: Apache-2.0
/*
 * leave.c - an exit with status 0 is leaving, not dying (docs/ranks.md, Failure)
 *
 * The proxies learn of it by SV_OP_X_COMM_LEAVE, sent from on_exit(), or from _exit() and _Exit(), which
 * this library has in front of libc's. exit() runs the former; what ends a process otherwise (a signal, a
 * status other than 0) is its death. A child of fork() or vfork() has no sessions and sends nothing. A second leave, as of
 * _exit() in a handler of exit(), changes nothing.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nccl_i.h"

static struct core_place places[SV_DEVICES_MAX];	/* lock; each is set once, before its watched */
static bool watched[SV_DEVICES_MAX];			/* atomic */
static pid_t process;					/* 0: there has been no communicator; atomic */
static struct lock lock = LOCK_INIT(NCCL_LEAVE);

static void leave(int status)
{
	/* pairs with leave_watch(), here and below */
	if (status & 0xff || __atomic_load_n(&process, __ATOMIC_ACQUIRE) != getpid())
		return;
	for (int i = 0; i < SV_DEVICES_MAX; i++)
		/* pairs with leave_watch(): the place is there */
		if (__atomic_load_n(&watched[i], __ATOMIC_ACQUIRE))
			core->send(&places[i], SV_OP_X_COMM_LEAVE, NULL, 0);
}

static void at_exit(int status, void *arg)
{
	(void)arg;
	leave(status);
}

void leave_watch(const struct core_place *at)
{
	/* pairs with the store below */
	if (__atomic_load_n(&watched[at->device], __ATOMIC_ACQUIRE))
		return;
	lock_take(&lock);
	if (!watched[at->device]) {
		places[at->device] = *at;
		__atomic_store_n(&watched[at->device], true, __ATOMIC_RELEASE);
	}
	if (!process) {
		on_exit(at_exit, NULL);
		__atomic_store_n(&process, getpid(), __ATOMIC_RELEASE);
	}
	lock_drop(&lock);
}

API _Noreturn void _exit(int status)
{
	leave(status);
	for (;;)
		syscall(SYS_exit_group, status);
}

API _Noreturn void _Exit(int status)
{
	_exit(status);
}
