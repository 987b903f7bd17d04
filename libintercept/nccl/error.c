// SPDX-License-Identifier: Apache-2.0
/*
 * error.c - texts of errors: ncclGetErrorString, ncclGetLastError, NCCL_DEBUG
 *
 * As in NCCL the last sentence is the process's, and NCCL_DEBUG=WARN (or above) prints it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "nccl_i.h"

static struct lock lock = LOCK_INIT(NCCL_LAST_ERROR);
static char last[1024];		/* lock to write */

static FILE *debug_file(void)
{
	const char *name = getenv("NCCL_DEBUG_FILE");
	char path[512], host[64] = "";
	size_t n = 0;

	if (!name || !*name)
		return NULL;
	gethostname(host, sizeof(host) - 1);
	for (; *name && n + 80 < sizeof(path); name++) {
		if (*name == '%' && name[1] == 'h')
			n += snprintf(path + n, sizeof(path) - n, "%s", host), name++;
		else if (*name == '%' && name[1] == 'p')
			n += snprintf(path + n, sizeof(path) - n, "%d", getpid()), name++;
		else
			path[n++] = *name;
	}
	path[n] = 0;
	return fopen(path, "ae");
}

static void warn_of(const char *text)
{
	const char *level = getenv("NCCL_DEBUG");
	char host[64] = "";
	FILE *f;

	if (!level || (strcasecmp(level, "WARN") && strcasecmp(level, "INFO") &&
		       strcasecmp(level, "ABORT") && strcasecmp(level, "TRACE")))
		return;
	gethostname(host, sizeof(host) - 1);
	f = debug_file();
	fprintf(f ?: stdout, "%s:%d:%ld NCCL WARN %s\n", host, getpid(), (long)syscall(SYS_gettid), text);
	if (f)
		fclose(f);
	else
		fflush(stdout);
}

ncclResult_t failed(ncclResult_t rc, const char *fmt, ...)
{
	char text[sizeof(last)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	lock_take(&lock);
	memcpy(last, text, sizeof(last));
	lock_drop(&lock);
	if (core)
		core->log("nccl: %s", text);
	warn_of(text);
	return rc;
}

ncclResult_t cuda_failed(CUresult rc, const char *what)
{
	const char *text = NULL;

	if (rc == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		return failed(ncclInvalidUsage, "%s: not in this capture, of the body of a conditional node",
			      what);
	if (cuGetErrorString(rc, &text) || !text)
		text = "unknown error";
	return failed(ncclUnhandledCudaError, "%s: CUDA error %d: %s", what, rc, text);
}

API const char *ncclGetErrorString(ncclResult_t code)
{
	switch ((int)code) {
	case ncclSuccess:
		return "no error";
	case ncclUnhandledCudaError:
		return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
	case ncclSystemError:
		return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
	case ncclInternalError:
		return "internal error - please report this issue to the NCCL developers";
	case ncclInvalidArgument:
		return "invalid argument (run with NCCL_DEBUG=WARN for details)";
	case ncclInvalidUsage:
		return "invalid usage (run with NCCL_DEBUG=WARN for details)";
	case ncclRemoteError:
		return "remote process exited or there was a network error";
	case ncclInProgress:
		return "NCCL operation in progress";
	case 8:
		return "NCCL operation timed out";
	default:
		return "unknown result code";
	}
}

API const char *ncclGetLastError(ncclComm_t comm)
{
	/* pairs with set_failure() of the proxy: the text is there */
	if (comm && comm->magic == COMM_MAGIC &&
	    __atomic_load_n(&comm->word->code, __ATOMIC_ACQUIRE) && *comm->word->text)
		return comm->word->text;
	return last;
}

/* Called by the stubs of refused functions. */
LOCAL int sv_unsupported(const char *name, const char *reason);
int sv_unsupported(const char *name, const char *reason)
{
	static const char *said[LOG_REFUSALS];

	log_refusal(said, name, reason);
	return failed(ncclInvalidUsage, "%s is not supported: %s", name, reason);
}
