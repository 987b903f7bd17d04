/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h - processes with an end of the transport each, without proxies: they share a page with
 * their addresses, a barrier, and the first failure
 */
#ifndef SELFTESTS_COMM_WORLD_H
#define SELFTESTS_COMM_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport.h"

#define WORLD_MAX 16

struct world {
	uint32_t n;
	enum transport_order order;
	bool unopened;
	uint32_t len[WORLD_MAX]; /* of the address; 0: not open yet */
	uint32_t gone[WORLD_MAX];
	uint32_t came, turn;
	uint32_t failed;
	uint32_t victim; /* is to be killed */
	char text[256];
	pid_t pid[WORLD_MAX];
	double figure[64]; /* what processes tell each other */
	char note[128][TRANSPORT_NOTE_MAX]; /* by key, with its greatest bit as 64 */
	uint32_t noted[128]; /* its size */
	char said[WORLD_MAX][256]; /* the last sentence for the user */
	struct transport_counters count[WORLD_MAX];
	char address[WORLD_MAX][TRANSPORT_ADDRESS_MAX];
};

extern struct world *world;
extern const struct transport_driver *driver; /* of libsoftcomm.so below SINGVGPU_BUILD */
extern struct transport *end; /* this process's */
extern uint32_t world_self;
struct hal *world_hal(void); /* over the fake NCCL */
extern bool world_tcp; /* ends are not to share memory */
extern const bool world_nccl; /* the transport is NCCL's, over selftests/nccl/fake.c, on the soft device */
extern bool world_apart; /* they are in svcolla and svcollb, network namespaces of bench-coll */

bool world_has_ip(void); /* that another host could reach */

/* Forks n processes that run body(self, arg) with their ends open. */
void world_begin(uint32_t n, void (*body)(uint32_t self, void *arg), void *arg);
/* The same with an order of addition; unopened: the body opens its end for itself. */
void world_begin_as(uint32_t n, enum transport_order order, bool unopened, void (*body)(uint32_t self, void *arg),
                    void *arg);
/* Waits for them. 0, or the number of those that failed; the victim's end is no failure. */
int world_end(void);
void world_barrier(void);
extern const uint32_t world_devices[WORLD_MAX]; /* by rank: rank r is on device r */
/* Prints the next TAP point. 1: it is not ok. */
int world_result(bool ok, const char *name);
/* Memory that the transport can send and receive. */
void *world_alloc(size_t size);
void world_free(void *p);
/* All ends join a communicator of this key, with their numbers as ranks. */
void world_join(uint64_t key);
/* The first failure of any; ends this process. */
void world_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* An operation's end. */
struct ended {
	uint32_t code; /* + 1; 0: not yet */
};
void on_end(void *arg, enum step_code code);
/* Waits for it; -1: not within that time. */
int await(struct ended *e, int ms);
double seconds(void);

#endif
