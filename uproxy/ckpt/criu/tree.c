// SPDX-License-Identifier: Apache-2.0
/*
 * tree.c - the processes of a dump, and whether a restore can make them again
 *
 *   inventory.img    { 3: CRIU's own ids }; one magic number alone
 *   pstree.img       entries { 1 pid, 2 ppid, … }
 *   ids-PID.img      { 2 files, 5 … 12 namespaces }; none of a process that has ended
 *   core-PID.img     { 3: { 1 state, 6 comm, … }, … }
 *   fdinfo-FILES.img entries { 1 the file's id, … }, of a table of descriptors
 *   fs-PID.img       { 1 the working folder's id, 2 the root's }
 *   files.img        entries { 1 type, 2 id, 3: { 6 name, … } of a file, 5: of a namespace, … }
 *   tty-info.img     entries { 4 exclusive, … }
 *   remap-fpath.img  entries { 1 the file's id, 2 …, 3 type }
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protobuf_i.h"
#include "tree.h"

#define REMAP_PROCFS 2

struct entry {
	const uint8_t *p, *end;
};

static int damaged(struct why *why, const char *name)
{
	return why_set(why, -EBADMSG, "CRIU's image %s is damaged", name);
}

/* The entries of an image; false: there is none. Of one that is cut short next() says so. */
static bool open_image(const struct tree *t, const char *name, struct entry *e)
{
	size_t len;
	const char *text = t->image(t->arg, name, &len);
	size_t magics = strcmp(name, "inventory.img") ? PB_MAGICS : PB_MAGICS / 2;

	if (!text)
		return false;
	*e = (struct entry){ len < magics ? NULL : (const uint8_t *)text + magics, (const uint8_t *)text + len };
	return true;
}

static int next(struct entry *all, struct entry *one)
{
	uint32_t len;
	int rc = all->p ? pb_entry(&all->p, all->end, &one->p, &len) : -1;

	if (rc > 0)
		one->end = one->p + len;
	return rc;
}

/* The values of the fields below n; of bytes, where they lie. False: malformed. */
static bool fields(struct entry e, struct pb_field *f, unsigned int n)
{
	struct pb_field one;
	int rc;

	memset(f, 0, n * sizeof(*f));
	while ((rc = pb_field(&e.p, e.end, &one)) > 0)
		if (one.number < n)
			f[one.number] = one;
	return !rc;
}

static struct entry inside(const struct pb_field *f)
{
	return (struct entry){ f->data, f->data + f->len };
}

static bool read_ids(struct entry e, uint64_t ids[IDS_FIELDS])
{
	struct pb_field f[IDS_FIELDS];

	if (!fields(e, f, IDS_FIELDS))
		return false;
	for (int i = 0; i < IDS_FIELDS; i++)
		ids[i] = f[i].value;
	return true;
}

static int read_process(struct tree *t, struct tree_process *p, struct why *why)
{
	struct pb_field core[4], task[7];
	struct entry all, one;
	char name[32];

	snprintf(name, sizeof(name), "core-%u.img", p->pid);
	if (!open_image(t, name, &all) || next(&all, &one) <= 0 || !fields(one, core, 4) || !core[3].data ||
	    !fields(inside(&core[3]), task, 7))
		return damaged(why, name);
	p->state = task[1].value;
	if (task[6].data)
		snprintf(p->comm, sizeof(p->comm), "%.*s", (int)(task[6].len < 15 ? task[6].len : 15),
			 (const char *)task[6].data);
	snprintf(name, sizeof(name), "ids-%u.img", p->pid);
	if (!open_image(t, name, &all))
		return 0;
	p->ids_known = true;
	return next(&all, &one) > 0 && read_ids(one, p->ids) ? 0 : damaged(why, name);
}

int tree_read(struct tree *t, tree_image image, const void *arg, struct why *why)
{
	struct pb_field f[4];
	struct entry all, one;
	size_t room;
	int rc;

	*t = (struct tree){ .image = image, .arg = arg };
	if (!open_image(t, "inventory.img", &all) || next(&all, &one) <= 0 || !fields(one, f, 4) || !f[3].data ||
	    !read_ids(inside(&f[3]), t->root_ids))
		return damaged(why, "inventory.img");
	if (!open_image(t, "pstree.img", &all) || !all.p)
		return damaged(why, "pstree.img");
	room = (all.end - all.p) / 8 + 1;	/* an entry has more, unless it is forged */
	t->process = calloc(room, sizeof(*t->process));
	if (!t->process)
		return why_set(why, -ENOMEM, "no memory for the list of processes");
	while ((rc = next(&all, &one)) > 0) {
		struct tree_process *p = &t->process[t->n];

		if (t->n == room || !fields(one, f, 3) || !f[1].value || f[1].value > INT32_MAX ||
		    f[2].value > INT32_MAX)
			return damaged(why, "pstree.img");
		p->pid = f[1].value;
		p->parent = f[2].value;
		t->n++;
		rc = read_process(t, p, why);
		if (rc)
			return rc;
	}
	if (rc || !t->n || !t->process[0].ids_known)
		return damaged(why, "pstree.img");
	t->own_pids = t->process[0].ids[IDS_PID_NS] != t->root_ids[IDS_PID_NS];
	return 0;
}

void tree_free(struct tree *t)
{
	free(t->process);
	t->process = NULL;
	t->n = 0;
}

const struct tree_process *tree_find(const struct tree *t, uint32_t pid)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->process[i].pid == pid)
			return &t->process[i];
	return NULL;
}

/* -------------------------------------------------------------------------------- openers */

/* The table of descriptors has the file. */
static bool table_has(const struct tree *t, uint64_t table, uint64_t id)
{
	struct entry all, one;
	struct pb_field f[2];
	char name[40];

	snprintf(name, sizeof(name), "fdinfo-%llu.img", (unsigned long long)table);
	if (!open_image(t, name, &all))
		return false;
	while (next(&all, &one) > 0)
		if (fields(one, f, 2) && f[1].value == id)
			return true;
	return false;
}

static bool is_folder_of(const struct tree *t, uint32_t pid, uint64_t id)
{
	struct entry all, one;
	struct pb_field f[3];
	char name[32];

	snprintf(name, sizeof(name), "fs-%u.img", pid);
	return open_image(t, name, &all) && next(&all, &one) > 0 && fields(one, f, 3) &&
	       (f[1].value == id || f[2].value == id);
}

/*
 * Of all processes that have a description in their tables, CRIU has the one with the lowest pid open it; a
 * working folder is opened by each process.
 */
bool tree_opens(const struct tree *t, uint64_t id, uint32_t pid)
{
	uint32_t first = UINT32_MAX;
	bool folder = false;

	for (size_t i = 0; i < t->n; i++) {
		const struct tree_process *p = &t->process[i];

		if (!p->ids_known)
			continue;
		if (p->pid < first && table_has(t, p->ids[IDS_FILES], id))
			first = p->pid;
		if (is_folder_of(t, p->pid, id)) {
			if (p->pid != pid)
				return false;
			folder = true;
		}
	}
	return first == pid || (folder && first == UINT32_MAX);
}

/* ---------------------------------------------------------------------------------- check */

/* CRIU makes namespaces for the root alone; pid_for_children counts, too. */
static int check_namespaces(const struct tree *t, struct why *why)
{
	static const char *const names[IDS_FIELDS] = {
		[IDS_PID_NS] = "pid", [IDS_NET_NS] = "network", [IDS_IPC_NS] = "IPC", [IDS_UTS_NS] = "UTS",
		[IDS_MNT_NS] = "mount", [IDS_USER_NS] = "user", [IDS_TIME_NS] = "time",
	};
	const struct tree_process *root = &t->process[0];

	for (size_t i = 1; i < t->n; i++) {
		const struct tree_process *p = &t->process[i];

		for (int k = IDS_PID_NS; k < IDS_FIELDS && p->ids_known; k++)
			if (names[k] && p->ids[k] != root->ids[k])
				return why_set(why, -ENOTSUP, "process %u (%s) of the job is in a %s namespace of its "
					       "own, which a restore cannot make again: end it, or start it without that "
					       "(`unshare`, a sandbox)", p->pid, p->comm, names[k]);
	}
	return 0;
}

/* The name of a file of /proc that belongs to one process by its number on the host. */
static bool is_of_process(const struct pb_field *name)
{
	const char *at = (const char *)name->data, *end = at + name->len;

	if (at < end && *at == '/')
		at++;
	return end - at > 5 && !memcmp(at, "proc/", 5) && at[5] >= '0' && at[5] <= '9';
}

static int check_files(const struct tree *t, struct why *why)
{
	struct pb_field f[6], reg[7];
	struct entry all, one;
	int rc = 0;

	if (!open_image(t, "files.img", &all))
		return damaged(why, "files.img");
	while ((rc = next(&all, &one)) > 0) {
		if (!fields(one, f, 6) || (f[3].data && !fields(inside(&f[3]), reg, 7)))
			return damaged(why, "files.img");
		if (f[5].data && t->own_pids)
			return why_set(why, -ENOTSUP, "a process has a namespace open (/proc/PID/ns), which CRIU cannot open "
				       "again from a namespace of its own pids: close it, or start the job with "
				       "--host-pids");
		if (f[3].data && t->own_pids && is_of_process(&reg[6]))
			return why_set(why, -ENOTSUP, "the open file %s%.*s belongs to a process by its number on this "
				       "host, which a restore cannot keep: only what a process has opened of itself "
				       "(/proc/self) comes back. Close it, or start the job with --host-pids",
				       *reg[6].data == '/' ? "" : "/", (int)(reg[6].len < 200 ? reg[6].len : 200),
				       (const char *)reg[6].data);
	}
	return rc ? damaged(why, "files.img") : 0;
}

static int check_remaps(const struct tree *t, struct why *why)
{
	struct entry all, one;
	struct pb_field f[4];
	int rc;

	if (!open_image(t, "remap-fpath.img", &all))
		return 0;
	while ((rc = next(&all, &one)) > 0) {
		if (!fields(one, f, 4))
			return damaged(why, "remap-fpath.img");
		if (t->own_pids && f[3].value == REMAP_PROCFS)
			return why_set(why, -ENOTSUP, "a file of /proc is open that belongs to a process which has ended: "
				       "close it");
	}
	return rc ? damaged(why, "remap-fpath.img") : 0;
}

/* CRIU saves that a terminal is exclusive, and does not restore it. */
static int check_terminals(const struct tree *t, struct why *why)
{
	struct entry all, one;
	struct pb_field f[5];
	int rc;

	if (!open_image(t, "tty-info.img", &all))
		return 0;
	while ((rc = next(&all, &one)) > 0) {
		if (!fields(one, f, 5))
			return damaged(why, "tty-info.img");
		if (f[4].value)
			return why_set(why, -ENOTSUP, "a process has a terminal for itself alone (TIOCEXCL), which CRIU does "
				       "not restore: end that (TIOCNXCL)");
	}
	return rc ? damaged(why, "tty-info.img") : 0;
}

int tree_check(tree_image image, const void *arg, struct why *why)
{
	struct tree t;
	int err = tree_read(&t, image, arg, why);

	err = err ?: check_namespaces(&t, why) ?: check_files(&t, why) ?: check_remaps(&t, why) ?: check_terminals(&t, why);
	tree_free(&t);
	return err;
}
