/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mock.h - both ends of generated code without a ring: a client, a proxy's core, and a driver that
 * records its calls
 */
#ifndef MOCK_H
#define MOCK_H

#include "cuda_dispatch.h"
#include "cuda_driver.h"
#include "cuda_hooks.h"
#include "stub.h"

#define MOCK_CTX	0x1c
#define MOCK_LEGACY	0x51	/* streams as the wire names them */
#define MOCK_PER_THREAD	0x52
#define MOCK_CAPTURED	0x53
#define MOCK_BASE	0x200000000000ull	/* the program's device memory */
#define MOCK_SIZE	0x10000ull
#define REAL(v)		((v) + 0x7000)	/* the driver's handle for a virtual one */

struct mock_handle {
	unsigned int type;	/* 0: free */
	uint64_t handle, real;
	int reserved;
};

struct sv_session {
	struct mock_handle handle[64];
	uint64_t room[8][8192];
	int entered;
};

/* What happened since mock_reset. */
struct mock {
	struct sv_session session;
	struct cuda_driver driver;
	struct mock_handle client[64];
	int calls, records, captured, unsupported, scratch_fails;
	const char *last;	/* the driver's function that was called last */
	uint64_t arg[8];
	char bytes[256];	/* what a pointer argument pointed to */
	CUresult result;	/* the driver's answer */
	uint8_t record[70000] __attribute__((aligned(8)));
	uint32_t record_len;
	uint16_t op;
	int rc;			/* of the last dispatch */
	const char *why;
	int hook_done;
};

extern struct mock mock;

void mock_reset(void);
/* A handle that exists on both ends. */
uint64_t mock_handle(unsigned int type);
/* Dispatches the record in mock.record. */
int mock_dispatch(uint16_t op, uint32_t len, struct sv_call *c);

#endif
