// SPDX-License-Identifier: Apache-2.0
/*
 * images_direct.c - writes the large private memory of restored processes itself, in several threads
 *
 * CRIU has each process read its pages from one pipe, in one thread, and takes a page fault for each.
 * So pages of large writable anonymous mappings are left out of the pagemap that CRIU gets, and of
 * the stream of pages; when all processes are there and do not run yet, we write them into theirs.
 *
 * Not those of mappings that two processes have at the same address: they may be parent and child,
 * and share them until one writes, which CRIU sees to. Images that are not as we know them are left
 * to CRIU altogether.
 *
 *   mm-PID.img       magics, u32 length, { 14: { 1 start, 2 end, 5 prot, 6 flags, 7 status } … }
 *   pagemap-PID.img  magics, then u32 length, { 1 pages_id }, then of each run u32 length,
 *                    { 1 address, 4 flags, 5 pages }; pages-ID.img has the pages in that order
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "images_i.h"

#define PAGE		4096ull
#define VMA_MIN		(1ull << 20)
#define RUN_MIN		16		/* pages; shorter ones are not worth a call */
#define CHUNK		(1ull << 20)
#define AHEAD		8		/* chunks that a thread has under way */
#define THREADS_MAX	8
#define VMAS_MAX	4096

#define STATUS_REGULAR	(1 << 0)
#define STATUS_HEAP	(1 << 5)
#define STATUS_PRIVATE	(1 << 9)	/* anonymous */
#define PE_PARENT	1
#define PE_PRESENT	4

struct vma {
	int pid;
	uint64_t start, end;
};

struct run {			/* of pages that are ours */
	int pid;
	uint32_t id;		/* of the pages' image */
	uint64_t off, address, len;
};

struct map {			/* a pagemap, as CRIU gets it */
	int pid;
	char *text;
	size_t len;
};

struct direct {
	const struct images_source *source;
	struct vma *vma;
	size_t n_vmas;
	struct run *run;	/* by id and off */
	size_t n_runs, room;
	struct map *map;
	size_t n_maps;

	/* filling */
	pid_t (*find)(void *arg, int pid);
	void *arg;
	uint64_t *bytes;
	size_t next_run;	/* lock */
	uint64_t next_off;	/* lock: within the run */
	int error;		/* lock */
	pthread_mutex_t lock;
};

/* ----------------------------------------------------------------------------- protobufs */

struct field {
	unsigned int number;
	uint64_t value;		/* of a varint */
	const uint8_t *data;	/* of bytes */
	uint64_t len;
};

static bool varint(const uint8_t **p, const uint8_t *end, uint64_t *v)
{
	*v = 0;
	for (int shift = 0; *p < end && shift < 70; shift += 7) {
		uint8_t b = *(*p)++;

		*v |= shift < 64 ? (uint64_t)(b & 0x7f) << shift : 0;
		if (!(b & 0x80))
			return true;
	}
	return false;
}

/* 1, 0 at the end, -1: nonsense. */
static int next_field(const uint8_t **p, const uint8_t *end, struct field *f)
{
	uint64_t key;

	if (*p == end)
		return 0;
	if (!varint(p, end, &key))
		return -1;
	f->number = key >> 3;
	f->data = NULL;
	f->value = f->len = 0;
	switch (key & 7) {
	case 0:
		return varint(p, end, &f->value) ? 1 : -1;
	case 2:
		if (!varint(p, end, &f->len) || f->len > (uint64_t)(end - *p))
			return -1;
		break;
	case 1:
	case 5:
		f->len = (key & 7) == 1 ? 8 : 4;
		if (f->len > (uint64_t)(end - *p))
			return -1;
		break;
	default:
		return -1;
	}
	f->data = *p;
	*p += f->len;
	return 1;
}

/* The next entry of an image: 1, 0 at the end, -1: nonsense. */
static int next_entry(const uint8_t **p, const uint8_t *end, const uint8_t **entry, uint32_t *len)
{
	if (*p == end)
		return 0;
	if (end - *p < 4)
		return -1;
	memcpy(len, *p, 4);
	if (*len > (uint64_t)(end - *p - 4))
		return -1;
	*entry = *p + 4;
	*p += 4 + *len;
	return 1;
}

/* ------------------------------------------------------------------------------- mappings */

static bool worth_it(const uint64_t *v)
{
	uint64_t status = v[7] & ~(uint64_t)STATUS_HEAP;

	return status == (STATUS_REGULAR | STATUS_PRIVATE) && (v[5] & PROT_WRITE) &&
	       v[6] == (MAP_PRIVATE | MAP_ANONYMOUS) && v[2] > v[1] && v[2] - v[1] >= VMA_MIN;
}

static bool add_vma(struct direct *d, int pid, const uint8_t *p, const uint8_t *end)
{
	uint64_t v[16] = { 0 };
	struct field f;
	int rc;

	while ((rc = next_field(&p, end, &f)) > 0)
		if (f.number < 16)
			v[f.number] = f.value;
	if (rc || d->n_vmas == VMAS_MAX)
		return false;
	if (worth_it(v))
		d->vma[d->n_vmas++] = (struct vma){ pid, v[1], v[2] };
	return true;
}

static bool read_vmas(struct direct *d, int pid, const uint8_t *p, const uint8_t *end)
{
	const uint8_t *entry;
	struct field f;
	uint32_t len;
	int rc;

	if (end - p < 8)
		return false;
	p += 8;
	if (next_entry(&p, end, &entry, &len) != 1)
		return false;
	end = entry + len;
	while ((rc = next_field(&entry, end, &f)) > 0)
		if (f.number == 14 && f.data && !add_vma(d, pid, f.data, f.data + f.len))
			return false;
	return !rc;
}

/* Those that may be shared between parent and child until one writes are CRIU's. */
static void drop_shared(struct direct *d)
{
	size_t n = 0;

	for (size_t i = 0; i < d->n_vmas; i++) {
		bool shared = false;

		for (size_t k = 0; k < d->n_vmas && !shared; k++)
			shared = d->vma[k].pid != d->vma[i].pid &&
				 d->vma[k].start < d->vma[i].end &&
				 d->vma[i].start < d->vma[k].end;
		d->vma[i].pid |= shared ? 1 << 30 : 0;
	}
	for (size_t i = 0; i < d->n_vmas; i++)
		if (!(d->vma[i].pid & 1 << 30))
			d->vma[n++] = d->vma[i];
	d->n_vmas = n;
}

/* ------------------------------------------------------------------------------- pagemaps */

static bool add_run(struct direct *d, int pid, uint32_t id, uint64_t off, uint64_t address,
		    uint64_t len)
{
	struct run *last = d->n_runs ? &d->run[d->n_runs - 1] : NULL;

	if (last && last->pid == pid && last->off + last->len == off &&
	    last->address + last->len == address) {
		last->len += len;
		return true;
	}
	if (d->n_runs == d->room) {
		size_t room = d->room ? 2 * d->room : 256;
		struct run *more = realloc(d->run, room * sizeof(*more));

		if (!more)
			return false;
		d->run = more;
		d->room = room;
	}
	d->run[d->n_runs++] = (struct run){ pid, id, off, address, len };
	return true;
}

static void put_varint(FILE *out, uint64_t v)
{
	for (; v > 0x7f; v >>= 7)
		putc(0x80 | (v & 0x7f), out);
	putc(v, out);
}

static void put_entry(FILE *out, uint64_t address, uint64_t pages, uint64_t flags)
{
	char *text = NULL;
	size_t len = 0;
	FILE *m = open_memstream(&text, &len);
	uint32_t n;

	if (!m)
		return;
	putc(1 << 3, m);
	put_varint(m, address);
	putc(2 << 3, m);	/* an older field that must be there */
	putc(0, m);
	putc(4 << 3, m);
	put_varint(m, flags);
	putc(5 << 3, m);
	put_varint(m, pages);
	fclose(m);
	n = len;
	fwrite(&n, sizeof(n), 1, out);
	fwrite(text, 1, len, out);
	free(text);
}

/* Where a run that begins at address ends: it is wholly within one of our mappings, or in none. */
static uint64_t piece(const struct direct *d, int pid, uint64_t address, uint64_t end, bool *ours)
{
	*ours = false;
	for (size_t i = 0; i < d->n_vmas; i++) {
		const struct vma *v = &d->vma[i];

		if (v->pid != pid)
			continue;
		if (address >= v->start && address < v->end) {
			*ours = true;
			return end < v->end ? end : v->end;
		}
		if (v->start > address && v->start < end)
			end = v->start;
	}
	return end;
}

static bool split(struct direct *d, int pid, uint32_t id, const uint64_t *v, uint64_t *off,
		  FILE *out)
{
	uint64_t at = v[1], end = v[1] + v[5] * PAGE, next;

	if (end <= at || v[5] > 1ull << 40)
		return false;
	for (; at < end; at = next) {
		bool ours;

		next = piece(d, pid, at, end, &ours);
		if (ours && next - at >= RUN_MIN * PAGE) {
			if (!add_run(d, pid, id, *off, at, next - at))
				return false;
		} else {
			put_entry(out, at, (next - at) / PAGE, v[4]);
		}
		*off += next - at;
	}
	return true;
}

static bool read_pagemap(struct direct *d, int pid, const uint8_t *p, const uint8_t *end,
			 FILE *out)
{
	const uint8_t *entry, *start = p;
	uint64_t off = 0, v[16];
	uint32_t len, id = 0;
	struct field f;
	int rc, n;

	if (end - p < 8)
		return false;
	p += 8;
	for (n = 0; (rc = next_entry(&p, end, &entry, &len)) > 0; n++) {
		const uint8_t *e = entry + len;

		memset(v, 0, sizeof(v));
		while ((rc = next_field(&entry, e, &f)) > 0)
			if (f.number < 16)
				v[f.number] = f.value;
		if (rc)
			return false;
		if (!n) {
			id = v[1];
			fwrite(start, 1, p - start, out);
		} else if (v[3] || v[4] & PE_PARENT || !v[5]) {
			return false;
		} else if (!(v[4] & PE_PRESENT)) {
			put_entry(out, v[1], v[5], v[4]);
		} else if (!split(d, pid, id, v, &off, out)) {
			return false;
		}
	}
	return !rc && n;
}

/* An image that is packed, or one of its own; *mine is to be freed. */
static const char *get(const struct direct *d, direct_small small, const void *arg,
		       const char *name, uint64_t *len, char **mine)
{
	const char *text = small(arg, name, len);
	void *object;

	*mine = NULL;
	if (text || d->source->open(d->source->arg, name, &object, len))
		return text;
	if (*len < 256 << 20)
		*mine = malloc(*len ?: 1);
	if (*mine && d->source->read(object, 0, *mine, *len)) {
		free(*mine);
		*mine = NULL;
	}
	d->source->close(object);
	return *mine;
}

static bool plan_pages(struct direct *d, int pid, direct_small small, const void *arg)
{
	struct map *m = &d->map[d->n_maps];
	size_t before = d->n_runs;
	const char *text;
	char name[40], *mine;
	uint64_t len;
	FILE *out;
	bool good;

	snprintf(name, sizeof(name), "pagemap-%d.img", pid);
	text = get(d, small, arg, name, &len, &mine);
	if (!text)
		return false;
	m->pid = pid;
	out = open_memstream(&m->text, &m->len);
	good = out && read_pagemap(d, pid, (const uint8_t *)text, (const uint8_t *)text + len, out);
	free(mine);
	if (out && fclose(out))
		good = false;
	d->n_maps += good;
	if (good)
		return true;
	free(m->text);
	d->n_runs = before;
	return false;
}

static bool has_vma(const struct direct *d, int pid)
{
	for (size_t i = 0; i < d->n_vmas; i++)
		if (d->vma[i].pid == pid)
			return true;
	return false;
}

struct direct *direct_plan(const struct images_source *source, direct_small small, const void *arg,
			   const int *pid, size_t n)
{
	struct direct *d = calloc(1, sizeof(*d));
	bool good = d;
	uint64_t len;
	char name[40];

	if (!d)
		return NULL;
	pthread_mutex_init(&d->lock, NULL);
	d->source = source;
	d->vma = calloc(VMAS_MAX, sizeof(*d->vma));
	d->map = calloc(n + 1, sizeof(*d->map));
	good = d->vma && d->map;
	for (size_t i = 0; i < n && good; i++) {
		const char *text;

		snprintf(name, sizeof(name), "mm-%d.img", pid[i]);
		text = small(arg, name, &len);
		good = text && read_vmas(d, pid[i], (const uint8_t *)text,
					 (const uint8_t *)text + len);
	}
	if (good)
		drop_shared(d);
	for (size_t i = 0; i < n && good; i++)
		good = !has_vma(d, pid[i]) || plan_pages(d, pid[i], small, arg);
	if (good && d->n_runs)
		return d;
	direct_free(d);
	return NULL;
}

void direct_free(struct direct *d)
{
	if (!d)
		return;
	for (size_t i = 0; i < d->n_maps; i++)
		free(d->map[i].text);
	pthread_mutex_destroy(&d->lock);
	free(d->map);
	free(d->vma);
	free(d->run);
	free(d);
}

const char *direct_pagemap(const struct direct *d, const char *name, uint64_t *len)
{
	int pid, end = 0;

	if (!d || sscanf(name, "pagemap-%d.img%n", &pid, &end) != 1 || !end || name[end])
		return NULL;
	for (size_t i = 0; i < d->n_maps; i++) {
		if (d->map[i].pid != pid)
			continue;
		*len = d->map[i].len;
		return d->map[i].text;
	}
	return NULL;
}

bool direct_keep(const struct direct *d, const char *name, uint64_t size, uint64_t *off,
		 uint64_t *end)
{
	unsigned int id;
	int n = 0;

	*end = size;
	if (d && sscanf(name, "pages-%u.img%n", &id, &n) == 1 && n && !name[n]) {
		for (size_t i = 0; i < d->n_runs; i++) {
			const struct run *r = &d->run[i];

			if (r->id != id || r->off + r->len <= *off)
				continue;
			if (r->off > *off) {
				*end = r->off < size ? r->off : size;
				break;
			}
			*off = r->off + r->len;
		}
	}
	return *off < *end;
}

/* -------------------------------------------------------------------------------- filling */

/* A part that is being read, then written. */
struct slot {
	struct run part;
	char *buf;
	void *ticket;		/* NULL: it is there */
};

struct worker {
	struct direct *d;
	void *object;		/* of the image that was read last */
	uint32_t id;
	char *memory;
	struct slot slot[AHEAD];	/* a ring */
	unsigned int first, n;
	pid_t pid;		/* the process that was looked for last, here, and in the images */
	int inner;
};

/* The next piece of work. False: none. */
static bool take(struct direct *d, struct run *part)
{
	const struct run *r;
	bool some;

	pthread_mutex_lock(&d->lock);
	some = !d->error && d->next_run < d->n_runs;
	if (some) {
		r = &d->run[d->next_run];
		*part = *r;
		part->off += d->next_off;
		part->address += d->next_off;
		part->len = r->len - d->next_off < CHUNK ? r->len - d->next_off : CHUNK;
		d->next_off += part->len;
		if (d->next_off == r->len) {
			d->next_run++;
			d->next_off = 0;
		}
	}
	pthread_mutex_unlock(&d->lock);
	return some;
}

static int open_pages(struct worker *w, uint32_t id)
{
	const struct images_source *s = w->d->source;
	char name[40];
	uint64_t size;

	if (w->object && w->id == id)
		return 0;
	if (w->object)
		s->close(w->object);
	w->object = NULL;
	w->id = id;
	snprintf(name, sizeof(name), "pages-%u.img", id);
	return s->open(s->arg, name, &w->object, &size);
}

static int put(pid_t pid, uint64_t address, const char *data, size_t len)
{
	while (len) {
		struct iovec from = { (void *)data, len }, to = { (void *)(uintptr_t)address, len };
		ssize_t n = process_vm_writev(pid, &from, 1, &to, 1, 0);

		if (n <= 0)
			return n ? -errno : -EFAULT;
		data += n;
		address += n;
		len -= n;
	}
	return 0;
}

static int begin_part(struct worker *w, const struct run *part)
{
	const struct images_source *s = w->d->source;
	struct slot *t = &w->slot[(w->first + w->n) % AHEAD];
	int err = open_pages(w, part->id);

	t->part = *part;
	t->ticket = NULL;
	if (err)
		return err;
	if (s->fetch)
		err = s->fetch(w->object, part->off, t->buf, part->len, &t->ticket);
	else
		err = s->read(w->object, part->off, t->buf, part->len);
	w->n += !err;
	return err;
}

/* The part that was begun first. */
static int end_part(struct worker *w, bool wanted)
{
	const struct images_source *s = w->d->source;
	struct slot *t = &w->slot[w->first];
	int err = t->ticket ? s->fetch_end(w->object, t->ticket) : 0;

	w->first = (w->first + 1) % AHEAD;
	w->n--;
	if (err || !wanted)
		return err;
	if (w->inner != t->part.pid) {
		w->inner = t->part.pid;
		w->pid = w->d->find(w->d->arg, w->inner);
	}
	err = w->pid > 0 ? put(w->pid, t->part.address, t->buf, t->part.len) : -ESRCH;
	if (!err)
		__atomic_fetch_add(w->d->bytes, t->part.len, __ATOMIC_RELAXED);
	return err;
}

/* Reads are under way for all slots but the one that is being written. */
static int fill(struct worker *w)
{
	struct run part;
	bool more = true;
	int err = 0;

	while (!err && (more || w->n)) {
		more = more && take(w->d, &part);
		/* What is under way is of the image that is open. */
		while (more && !err && w->n && w->id != part.id)
			err = end_part(w, true);
		if (more && !err)
			err = begin_part(w, &part);
		if (!err && w->n && (!more || w->n == AHEAD))
			err = end_part(w, true);
	}
	while (w->n)
		end_part(w, false);
	return err;
}

static void *work(void *arg)
{
	struct worker w = { .d = arg };
	int err = 0;

	w.memory = aligned_alloc(CHUNK, AHEAD * CHUNK);
	for (int i = 0; i < AHEAD && w.memory; i++)
		w.slot[i].buf = w.memory + i * CHUNK;
	err = w.memory ? fill(&w) : -ENOMEM;
	if (err) {
		pthread_mutex_lock(&w.d->lock);
		w.d->error = w.d->error ?: err;
		pthread_mutex_unlock(&w.d->lock);
	}
	if (w.object)
		w.d->source->close(w.object);
	free(w.memory);
	return NULL;
}

int direct_fill(struct direct *d, pid_t (*find)(void *arg, int pid), void *arg, uint64_t *bytes)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	pthread_t thread[THREADS_MAX];
	sigset_t all, old;
	int n = 0;

	d->find = find;
	d->arg = arg;
	d->bytes = bytes;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (n < THREADS_MAX && n < cpus - 1 && !pthread_create(&thread[n], NULL, work, d))
		n++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	work(d);
	while (n)
		pthread_join(thread[--n], NULL);
	return d->error;
}
