/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_bring.h - brings a job back from a checkpoint, as a struct job_restore of its supervisor
 *
 *   bring_open ─► bring_check ─► (job.c) proxies: device, replay, contents ─► tree: libraries, files,
 *                                CRIU ─► go: gates open ─► bring_close
 *
 * Nothing outside of the store is changed before all proxies have what they need.
 */
#ifndef CKPT_BRING_H
#define CKPT_BRING_H

#include "ckpt_i.h"
#include "criu.h"
#include "job.h"
#include "store.h"

struct bring_options {
	const char *store;	/* NULL: the default */
	const char *id;		/* its first digits, or "latest" */
	const char *criu;	/* NULL: what is found */
	const char *json;	/* NULL, or where the report goes */
	long device;		/* first of the devices to use; -1: those that they had */
	bool quiet;
};

struct bring {
	struct bring_options o;
	char dir[PATH_MAX];	/* of the store */
	char id[STORE_ID];
	struct store *store;
	struct store_checkpoint *checkpoint;
	struct ckpt_facts facts;
	struct rundir_job *was;
	struct criu criu;
	struct phases ps;
	int hold;		/* until then no conductor takes it */
	int *channel;		/* of facts.proxy[i]: the client's end */
	int *control;
	char (*inherit)[128];
	uint8_t (*cookie)[16];	/* of a channel of the module */
	struct job_restore restore;	/* for struct job */
};

/* Opens the checkpoint and reads what it is of. Says what is wrong. */
int bring_open(struct bring *b, const struct bring_options *o);
/* All that can be known before anything is touched. why[] gets what to do. */
int bring_check(struct bring *b, char *why, size_t size);
/* From then on the job is not to come back: only the devices are asked whether they would do. */
void bring_ask_only(struct bring *b);
/* What `run` was told then. The texts live as long as b. */
int bring_job_options(const struct bring *b, struct job_options *opt);
void bring_close(struct bring *b);

#endif
