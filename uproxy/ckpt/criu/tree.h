/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h - the processes of a dump and what they have open, from its small images
 *
 * The images may be forged: each number is only compared, and each length checked.
 */
#ifndef UPROXY_CKPT_CRIU_TREE_H
#define UPROXY_CKPT_CRIU_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "why.h"

/* Returns the small image of that name; NULL: there is none. */
typedef const char *(*tree_image)(const void *arg, const char *name, size_t *len);

/* Fields of an entry of ids-PID.img: which kernel object a process has; equal numbers mean the same one. */
enum { IDS_FILES = 2, IDS_PID_NS = 5, IDS_NET_NS, IDS_IPC_NS, IDS_UTS_NS, IDS_MNT_NS, IDS_USER_NS, IDS_CGROUP_NS,
	IDS_TIME_NS, IDS_FIELDS };

struct tree_process {
	uint32_t pid, parent;	/* in the job's namespace; 0: none */
	uint32_t state;		/* enum tree_state */
	bool ids_known;		/* false of a process that has ended */
	uint64_t ids[IDS_FIELDS];
	char comm[16];
};

struct tree {
	tree_image image;
	const void *arg;
	struct tree_process *process;	/* the root first */
	size_t n;
	bool own_pids;		/* the root is process 1 of a namespace */
	uint64_t root_ids[IDS_FIELDS];	/* of CRIU itself */
};

/* -EBADMSG: *why says which image is damaged; -ENOMEM. The caller calls tree_free() in any case. */
int tree_read(struct tree *t, tree_image image, const void *arg, struct why *why);
void tree_free(struct tree *t);

const struct tree_process *tree_find(const struct tree *t, uint32_t pid);

/* Process pid alone opens the file with that id in files.img when the tree is restored. */
bool tree_opens(const struct tree *t, uint64_t id, uint32_t pid);

/*
 * Reads the images as a restore does before it makes processes. -ENOTSUP: CRIU has dumped what it cannot restore, which
 * *why names; -EBADMSG: it says which image is damaged.
 */
int tree_check(tree_image image, const void *arg, struct why *why);

#endif
