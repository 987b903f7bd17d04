// SPDX-License-Identifier: Apache-2.0
/*
 * edit.c - corrects what CRIU has written of a tree, where its own restore would get it wrong
 *
 * A periodic timerfd whose expiries nobody has read is not armed in the kernel: the read arms it. CRIU writes the time
 * that is left, 0, and restores a timer that never fires again. It gets its interval as the time that is left.
 *
 * In a namespace of its own pids of the job's, a process still sees /proc of the host, so "/proc/self/stat" is
 * "/proc/PID/stat" with a pid that it has on this host alone. Where the process itself opens the file in a restore, it
 * can open it as "/proc/self/stat" again, and "/proc/PID/task/PID/comm" as "/proc/thread-self/comm", since it has only
 * its first thread then. tree_check() refuses what is left.
 *
 * A timer of timer_create() that signals a thread (SIGEV_THREAD_ID) has that thread's pid. In a namespace of its own
 * pids, CRIU 4.2 writes what was in its memory by chance for a process's first thread: a number that no thread has.
 *
 *   core-PID.img  { 3: { 7: { 4: { 4 SIGEV_…, 11 thread, … }, … }, … }, … }
 *   files.img  entries { 1 type, 2 id, 3: { 6 name, … }, 12: { 5 ticks, 7 s, 8 ns, 9 s, 10 ns of the interval }, … }
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "criu_i.h"
#include "protobuf_i.h"
#include "tree.h"

enum { ID = 2, REG = 3, TIMERFD = 12 };
enum { REG_NAME = 6 };
enum { TASK = 3, TIMERS = 7, POSIX = 4, NOTIFY = 4, THREAD = 11, SIGEV_THREAD_ID_ = 4 };
enum { TICKS = 5, LEFT_S = 7, LEFT_NS, INTERVAL_S, INTERVAL_NS };

struct edit {
	struct tree tree;
	pid_t root;
	bool changed;
};

/* Copies the fields of a protobuf but for those with the numbers from..to. */
static void copy_but(FILE *out, const uint8_t *p, const uint8_t *end, unsigned int from, unsigned int to)
{
	const uint8_t *at = p;
	struct pb_field f;

	for (; pb_field(&p, end, &f) > 0; at = p)
		if (f.number < from || f.number > to)
			fwrite(at, 1, p - at, out);
}

static void put_number(FILE *out, unsigned int field, uint64_t value)
{
	pb_put_varint(out, field << 3);
	pb_put_varint(out, value);
}

static void put_bytes(FILE *out, unsigned int field, const void *data, size_t len)
{
	pb_put_varint(out, field << 3 | 2);
	pb_put_varint(out, len);
	fwrite(data, 1, len, out);
}

/* The timer's new fields; NULL: it is right as it is. */
static char *mend_timer(const struct pb_field *timer, size_t *len)
{
	const uint8_t *p = timer->data, *end = p + timer->len;
	uint64_t v[INTERVAL_NS + 1] = { 0 };
	struct pb_field f;
	char *text = NULL;
	FILE *out;

	while (pb_field(&p, end, &f) > 0)
		if (f.number <= INTERVAL_NS)
			v[f.number] = f.value;
	if (!v[TICKS] || v[LEFT_S] || v[LEFT_NS] || !(v[INTERVAL_S] || v[INTERVAL_NS]))
		return NULL;
	out = open_memstream(&text, len);
	if (!out)
		return NULL;
	copy_but(out, timer->data, end, LEFT_S, LEFT_NS);
	put_number(out, LEFT_S, v[INTERVAL_S]);
	put_number(out, LEFT_NS, v[INTERVAL_NS]);
	return fclose(out) ? NULL : text;
}

/* The process with that pid on this host, by its pid in the job; 0: it is none of the tree. */
static uint32_t inner_pid(const struct edit *e, int pid)
{
	char path[32], line[256], *last;
	uint32_t inner = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	in = fopen(path, "re");
	while (in && !inner && fgets(line, sizeof(line), in))
		if (!strncmp(line, "NSpid:", 6) && (last = strrchr(line, '\t')))
			inner = atoi(last + 1);
	if (in)
		fclose(in);
	return tree_find(&e->tree, inner) && criu_find_pid(e->root, inner) == pid ? inner : 0;
}

/* A new name for a file of /proc that a process has open of itself; NULL: none. */
static char *mend_name(const struct edit *e, const struct pb_field *reg, uint64_t id)
{
	const uint8_t *p = reg->data;
	char name[PATH_MAX], *text = NULL;
	int pid, thread, end = 0, behind = 0;
	struct pb_field f, of = { 0 };
	uint32_t inner;
	bool slash;

	while (pb_field(&p, reg->data + reg->len, &f) > 0)
		if (f.number == REG_NAME)
			of = f;
	if (!of.data || of.len >= sizeof(name) || memchr(of.data, 0, of.len))
		return NULL;
	memcpy(name, of.data, of.len);
	name[of.len] = 0;
	slash = *name == '/';
	if (sscanf(name + slash, "proc/%9d%n", &pid, &end) != 1 || !end || !strchr("/", name[slash + end]))
		return NULL;
	inner = inner_pid(e, pid);
	if (!inner || !tree_opens(&e->tree, id, inner))
		return NULL;
	end += slash;
	if (sscanf(name + end, "/task/%9d%n", &thread, &behind) == 1 && behind) {
		if (thread != pid)
			return NULL;
		return asprintf(&text, "%sproc/thread-self%s", slash ? "/" : "", name + end + behind) < 0 ? NULL : text;
	}
	return asprintf(&text, "%sproc/self%s", slash ? "/" : "", name + end) < 0 ? NULL : text;
}

static bool put_named(FILE *out, const struct pb_field *reg, const char *name)
{
	char *text = NULL;
	size_t len = 0;
	FILE *in = open_memstream(&text, &len);
	bool whole = in;

	if (in) {
		copy_but(in, reg->data, reg->data + reg->len, REG_NAME, REG_NAME);
		put_bytes(in, REG_NAME, name, strlen(name));
		whole = !fclose(in);
	}
	if (whole)
		put_bytes(out, REG, text, len);
	free(text);
	return whole;
}

/* One entry, corrected if need be. False: no memory. */
static bool put_entry(struct edit *e, FILE *out, const uint8_t *entry, uint32_t n)
{
	struct pb_field f, reg = { 0 }, timer = { 0 };
	const uint8_t *p = entry, *end = entry + n;
	char *text = NULL, *name = NULL;
	size_t len = 0, body_len = 0;
	bool whole = true;
	char *body = NULL;
	uint64_t id = 0;
	uint32_t size;
	FILE *in;

	while (pb_field(&p, end, &f) > 0) {
		id = f.number == ID ? f.value : id;
		reg = f.number == REG ? f : reg;
		timer = f.number == TIMERFD ? f : timer;
	}
	if (timer.data)
		text = mend_timer(&timer, &len);
	else if (reg.data && e->tree.own_pids)
		name = mend_name(e, &reg, id);
	if (!text && !name) {
		fwrite(entry - 4, 1, n + 4, out);
		return true;
	}
	in = open_memstream(&body, &body_len);
	if (in) {
		copy_but(in, entry, end, text ? TIMERFD : REG, text ? TIMERFD : REG);
		if (text)
			put_bytes(in, TIMERFD, text, len);
		else
			whole = put_named(in, &reg, name);
		whole &= !fclose(in);
	}
	size = body_len;
	whole &= body && fwrite(&size, sizeof(size), 1, out) == 1 && fwrite(body, 1, size, out) == size;
	e->changed = true;
	free(body);
	free(text);
	free(name);
	return whole;
}

/* -------------------------------------------------------------------------------- timers */

/* Does the process have that thread? pstree.img: { 1 pid, …, 5 thread … }. */
static bool has_thread(const struct edit *e, uint32_t pid, uint64_t thread)
{
	size_t len;
	const char *text = e->tree.image(e->tree.arg, "pstree.img", &len);
	const uint8_t *p = (const uint8_t *)text + PB_MAGICS, *end = (const uint8_t *)text + len, *entry;
	struct pb_field f;
	uint32_t n;

	while (pb_entry(&p, end, &entry, &n) > 0) {
		const uint8_t *q = entry;
		bool its = false, found = false;

		while (pb_field(&q, entry + n, &f) > 0) {
			its |= f.number == 1 && f.value == pid;
			found |= f.number == 5 && f.value == thread;
		}
		if (its && found)
			return true;
	}
	return false;
}

static bool is_astray(const struct edit *e, uint32_t pid, const struct pb_field *timer)
{
	const uint8_t *p = timer->data;
	uint64_t notify = 0, thread = 0;
	struct pb_field f;

	while (pb_field(&p, timer->data + timer->len, &f) > 0) {
		notify = f.number == NOTIFY ? f.value : notify;
		thread = f.number == THREAD ? f.value : thread;
	}
	return notify == SIGEV_THREAD_ID_ && !has_thread(e, pid, thread);
}

/* Copies the task's timers; *changed: one had to be corrected. */
static void put_timers(const struct edit *e, FILE *out, uint32_t pid, const struct pb_field *timers, bool *changed)
{
	const uint8_t *p = timers->data, *end = p + timers->len, *at = p;
	struct pb_field f;

	for (; pb_field(&p, end, &f) > 0; at = p) {
		char *text = NULL;
		size_t len = 0;
		FILE *in;

		in = f.number == POSIX && f.data && is_astray(e, pid, &f) ? open_memstream(&text, &len) : NULL;
		if (!in) {
			fwrite(at, 1, p - at, out);
			continue;
		}
		copy_but(in, f.data, f.data + f.len, THREAD, THREAD);
		put_number(in, THREAD, pid);
		if (!fclose(in))
			put_bytes(out, POSIX, text, len);
		free(text);
		*changed = true;
	}
}

static bool field_of(const struct pb_field *in, unsigned int number, struct pb_field *found)
{
	const uint8_t *p = in->data;
	struct pb_field f;

	*found = (struct pb_field){ 0 };
	while (pb_field(&p, in->data + in->len, &f) > 0)
		if (f.number == number)
			*found = f;
	return found->data;
}

/* A message's bytes but for one field, then that field with other bytes. malloc'ed, or NULL. */
static char *with_other(const struct pb_field *message, unsigned int number, const char *text, size_t text_len, size_t *len)
{
	char *all = NULL;
	FILE *out = text ? open_memstream(&all, len) : NULL;

	if (!out)
		return NULL;
	copy_but(out, message->data, message->data + message->len, number, number);
	put_bytes(out, number, text, text_len);
	return fclose(out) ? NULL : all;
}

static int edit_timers(const struct edit *e, struct images *images, uint32_t pid)
{
	struct pb_field core = { 0 }, task, timers;
	size_t len, timers_len = 0, task_len = 0, core_len = 0, all_len = 0;
	char name[32], *one = NULL, *two, *three, *all = NULL;
	const uint8_t *p, *entry;
	bool changed = false;
	const char *text;
	uint32_t n;
	FILE *out;

	snprintf(name, sizeof(name), "core-%u.img", pid);
	text = images_text(images, name, &len);
	p = (const uint8_t *)text + PB_MAGICS;
	if (!text || len < PB_MAGICS || pb_entry(&p, (const uint8_t *)text + len, &entry, &n) <= 0)
		return 0;
	core.data = entry;
	core.len = n;
	if (!field_of(&core, TASK, &task) || !field_of(&task, TIMERS, &timers))
		return 0;
	out = open_memstream(&one, &timers_len);
	if (!out)
		return -ENOMEM;
	put_timers(e, out, pid, &timers, &changed);
	if (fclose(out) || !changed) {
		free(one);
		return changed ? -ENOMEM : 0;
	}
	two = with_other(&task, TIMERS, one, timers_len, &task_len);
	three = with_other(&core, TASK, two, task_len, &core_len);
	out = three ? open_memstream(&all, &all_len) : NULL;
	n = core_len;
	if (out) {
		fwrite(text, 1, PB_MAGICS, out);
		fwrite(&n, sizeof(n), 1, out);
		fwrite(three, 1, core_len, out);
		/* entries of an image that has more than one */
		fwrite(p, 1, (const uint8_t *)text + len - p, out);
		if (fclose(out) || images_edit(images, name, all, all_len))
			free(all), all = NULL;
	}
	free(one);
	free(two);
	free(three);
	return all ? 0 : -ENOMEM;
}

static const char *image_of(const void *images, const char *name, size_t *len)
{
	return images_text((struct images *)images, name, len);
}

int criu_edit(struct images *images, pid_t root, struct why *why)
{
	size_t len, text_len = 0;
	const char *files = images_text(images, "files.img", &len);
	struct edit e = { .root = root };
	const uint8_t *p, *entry;
	bool whole = true;
	char *text = NULL;
	uint32_t n;
	FILE *out;
	int err;

	err = tree_read(&e.tree, image_of, images, why);
	out = err || !files || len < PB_MAGICS ? NULL : open_memstream(&text, &text_len);
	if (out) {
		fwrite(files, 1, PB_MAGICS, out);
		for (p = (const uint8_t *)files + PB_MAGICS;
		     whole && pb_entry(&p, (const uint8_t *)files + len, &entry, &n) > 0;)
			whole = put_entry(&e, out, entry, n);
		whole &= !fclose(out);
	}
	if (!whole)
		err = why_set(why, -ENOMEM, "no memory for CRIU's list of files");
	for (size_t i = 0; i < e.tree.n && !err && e.tree.own_pids; i++)
		if (edit_timers(&e, images, e.tree.process[i].pid))
			err = why_set(why, -ENOMEM, "no memory for CRIU's list of timers");
	if (!err && e.changed && !images_edit(images, "files.img", text, text_len))
		text = NULL;
	free(text);
	tree_free(&e.tree);
	return err ?: tree_check(image_of, images, why);
}
