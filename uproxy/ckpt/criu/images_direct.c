// SPDX-License-Identifier: Apache-2.0
/*
 * images_direct.c - writes the large private memory of restored processes itself, in several threads
 *
 * With CRIU each process reads its pages from one pipe, in one thread, with a page fault for each.
 * So pages of large writable anonymous mappings are left out of the pagemap that CRIU gets, and of
 * the stream of pages; when all processes exist and do not run yet, we write the pages into them.
 *
 * CRIU keeps the pages of mappings that two processes have at the same address: parent and child
 * may share them until one writes, which CRIU restores. If an image's format is not as expected,
 * CRIU gets all pages.
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
#include "protobuf_i.h"

#define PAGE		4096ull
#define VMA_MIN		(1ull << 20)
#define RUN_MIN		16		/* pages; a shorter run is not worth a call */
#define CHUNK		(8ull << 20)	/* huge pages: see store_buffer() */
#define AHEAD		4		/* chunks that a thread has under way */
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

struct run {			/* of pages that bypass CRIU */
	int pid;
	uint32_t id;		/* of the pages' image */
	uint64_t off, address, len;
};

/* A part of an image that is read at once: its first run, and the offset in that. */
struct part {
	uint32_t id;
	uint64_t off, len;
	size_t run;
	uint64_t at;
};

/* A part that is being read, then written. */
struct slot {
	struct part part;
	char *buf;		/* CHUNK */
	void *ticket;		/* NULL: the read has ended */
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
	struct worker *worker;
	unsigned int n_workers;
	char *memory;		/* the workers' buffers */
	size_t memory_len;

	pthread_mutex_t lock;	/* for what follows */
	pthread_cond_t cond;
	bool begun, stop;	/* begun: the processes exist, and the fields below are set */
	pid_t (*find)(void *arg, int pid);
	void *arg;
	uint64_t *bytes;
	size_t next_run;
	uint64_t next_off;	/* within the run */
	int error;
};

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
	struct pb_field f;
	int rc;

	while ((rc = pb_field(&p, end, &f)) > 0)
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
	struct pb_field f;
	uint32_t len;
	int rc;

	if (end - p < 8)
		return false;
	p += 8;
	if (pb_entry(&p, end, &entry, &len) != 1)
		return false;
	end = entry + len;
	while ((rc = pb_field(&entry, end, &f)) > 0)
		if (f.number == 14 && f.data && !add_vma(d, pid, f.data, f.data + f.len))
			return false;
	return !rc;
}

/* Leaves to CRIU the mappings that parent and child may share until one writes. */
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

static void put_entry(FILE *out, uint64_t address, uint64_t pages, uint64_t flags)
{
	char *text = NULL;
	size_t len = 0;
	FILE *m = open_memstream(&text, &len);
	uint32_t n;

	if (!m)
		return;
	putc(1 << 3, m);
	pb_put_varint(m, address);
	putc(2 << 3, m);	/* an older field that must be there */
	putc(0, m);
	putc(4 << 3, m);
	pb_put_varint(m, flags);
	putc(5 << 3, m);
	pb_put_varint(m, pages);
	fclose(m);
	n = len;
	fwrite(&n, sizeof(n), 1, out);
	fwrite(text, 1, len, out);
	free(text);
}

/* The end of a run from address on that lies wholly in one of our mappings, or in none. */
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
	struct pb_field f;
	int rc, n;

	if (end - p < 8)
		return false;
	p += 8;
	for (n = 0; (rc = pb_entry(&p, end, &entry, &len)) > 0; n++) {
		const uint8_t *e = entry + len;

		memset(v, 0, sizeof(v));
		while ((rc = pb_field(&entry, e, &f)) > 0)
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

/* The image of that name, packed or an object of its own; the caller frees *mine. */
static const char *get_image(const struct direct *d, direct_small small, const void *arg,
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
	text = get_image(d, small, arg, name, &len, &mine);
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
	pthread_cond_init(&d->cond, NULL);
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

/*
 * The threads begin to read when the plan is made, as far as their buffers go. They write when the
 * processes exist. More buffers do not help: a buffer's memory is new, as is that of the processes,
 * and memory is filled with zeros at about the rate at which disks are read.
 */
struct worker {
	struct direct *d;
	pthread_t thread;
	void *object;		/* of the image that was read last */
	uint32_t id;
	struct slot slot[AHEAD];	/* a ring of the parts under way */
	unsigned int first, n;
	pid_t pid;		/* the process looked up last: our pid; inner: the images' */
	int inner;
};

/* With the lock. A part may span several runs that follow each other in the image. */
static void next_part(struct direct *d, struct part *part)
{
	const struct run *r = &d->run[d->next_run];

	*part = (struct part){ r->id, r->off + d->next_off, 0, d->next_run, d->next_off };
	while (part->len < CHUNK && d->next_run < d->n_runs) {
		uint64_t left = CHUNK - part->len;

		r = &d->run[d->next_run];
		if (r->id != part->id || r->off + d->next_off != part->off + part->len)
			break;
		if (left > r->len - d->next_off)
			left = r->len - d->next_off;
		part->len += left;
		d->next_off += left;
		if (d->next_off == r->len) {
			d->next_run++;
			d->next_off = 0;
		}
	}
}

/* Takes the next part to read. False: none. */
static bool take(struct direct *d, struct part *part)
{
	bool some;

	pthread_mutex_lock(&d->lock);
	some = !d->error && !d->stop && d->next_run < d->n_runs;
	if (some)
		next_part(d, part);
	pthread_mutex_unlock(&d->lock);
	return some;
}

/* Do the processes exist? Waits for them if that is asked for; they do not if that is given up. */
static bool may_write(struct direct *d, bool wait)
{
	bool may;

	pthread_mutex_lock(&d->lock);
	while (wait && !d->begun && !d->stop && !d->error)
		pthread_cond_wait(&d->cond, &d->lock);
	may = d->begun && !d->stop && !d->error;
	pthread_mutex_unlock(&d->lock);
	return may;
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

static int put_memory(pid_t pid, uint64_t address, const char *data, size_t len)
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

static int put_part(struct worker *w, const struct slot *t)
{
	const struct run *r = &w->d->run[t->part.run];
	uint64_t at = t->part.at, done = 0;
	int err = 0;

	for (; done < t->part.len && !err; r++, at = 0) {
		uint64_t len = r->len - at;

		if (len > t->part.len - done)
			len = t->part.len - done;
		if (w->inner != r->pid) {
			w->inner = r->pid;
			w->pid = w->d->find(w->d->arg, w->inner);
		}
		err = w->pid > 0 ? put_memory(w->pid, r->address + at, t->buf + done, len) : -ESRCH;
		done += len;
	}
	if (!err)
		__atomic_fetch_add(w->d->bytes, t->part.len, __ATOMIC_RELAXED);
	return err;
}

/* Has the part that was begun first been read? */
static bool has_come(struct worker *w)
{
	const struct images_source *s = w->d->source;
	const struct slot *t = &w->slot[w->first];

	return w->n && (!t->ticket || (s->fetch_there && s->fetch_there(w->object, t->ticket)));
}

/* Ends the read of the part that was begun first, and writes the part if it is wanted. */
static int end_part(struct worker *w, bool wanted)
{
	const struct images_source *s = w->d->source;
	const struct slot *t = &w->slot[w->first];
	int err = t->ticket ? s->fetch_end(w->object, t->ticket) : 0;

	w->first = (w->first + 1) % AHEAD;
	w->n--;
	return err || !wanted ? err : put_part(w, t);
}

static int begin_part(struct worker *w, const struct part *next)
{
	const struct images_source *s = w->d->source;
	struct slot *t;
	int err = 0;

	/* All parts under way are of the image that is open. */
	while (w->n && w->id != next->id && !err)
		err = may_write(w->d, true) ? end_part(w, true) : -ECANCELED;
	err = err ?: open_pages(w, next->id);
	if (err)
		return err;
	t = &w->slot[(w->first + w->n) % AHEAD];
	t->part = *next;
	t->ticket = NULL;
	if (s->fetch)
		err = s->fetch(w->object, next->off, t->buf, next->len, &t->ticket);
	else
		err = s->read(w->object, next->off, t->buf, next->len);
	w->n += !err;
	return err;
}

/* Parts that have just come go first, from the processor's cache; then new reads are started. */
static int fill(struct worker *w)
{
	struct part next;
	int err = 0;

	while (!err) {
		if (has_come(w) && may_write(w->d, false))
			err = end_part(w, true);
		else if (w->n < AHEAD && take(w->d, &next))
			err = begin_part(w, &next);
		else if (w->n && may_write(w->d, true))
			err = end_part(w, true);
		else
			break;
	}
	while (w->n)
		end_part(w, false);
	return err;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	int err = fill(w);

	if (err) {
		pthread_mutex_lock(&w->d->lock);
		w->d->error = w->d->error ?: err;
		pthread_cond_broadcast(&w->d->cond);
		pthread_mutex_unlock(&w->d->lock);
	}
	if (w->object)
		w->d->source->close(w->object);
	return NULL;
}

/* Reserves the workers' buffers; they take no memory until they are read into. */
static int get_buffers(struct direct *d, unsigned int workers)
{
	char *p;

	d->worker = calloc(workers, sizeof(*d->worker));
	d->memory_len = ((size_t)workers * AHEAD + 1) * CHUNK;
	d->memory = mmap(NULL, d->memory_len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (d->memory == MAP_FAILED)
		d->memory = NULL;
	if (!d->worker || !d->memory)
		return -ENOMEM;
	madvise(d->memory, d->memory_len, MADV_HUGEPAGE);
	madvise(d->memory, d->memory_len, MADV_DONTFORK);	/* CRIU's start would share it */
	p = (char *)(((uintptr_t)d->memory + CHUNK - 1) & ~(CHUNK - 1));
	for (unsigned int i = 0; i < workers; i++) {
		d->worker[i].d = d;
		for (int k = 0; k < AHEAD; k++, p += CHUNK)
			d->worker[i].slot[k].buf = p;
	}
	return 0;
}

void direct_begin(struct direct *d)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned int workers = cpus < 1 ? 1 : cpus < THREADS_MAX ? cpus : THREADS_MAX;
	sigset_t all, old;
	int err = get_buffers(d, workers);

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (!err && d->n_workers < workers) {
		struct worker *w = &d->worker[d->n_workers];

		err = -pthread_create(&w->thread, NULL, work, w);
		d->n_workers += !err;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_mutex_lock(&d->lock);
	if (!d->n_workers)
		d->error = err;
	pthread_mutex_unlock(&d->lock);
}

static void end_workers(struct direct *d)
{
	while (d->n_workers)
		pthread_join(d->worker[--d->n_workers].thread, NULL);
	if (d->memory)
		munmap(d->memory, d->memory_len);
	free(d->worker);
	d->memory = NULL;
	d->worker = NULL;
}

int direct_fill(struct direct *d, pid_t (*find)(void *arg, int pid), void *arg, uint64_t *bytes)
{
	pthread_mutex_lock(&d->lock);
	d->find = find;
	d->arg = arg;
	d->bytes = bytes;
	d->begun = true;
	pthread_cond_broadcast(&d->cond);
	pthread_mutex_unlock(&d->lock);
	end_workers(d);
	return d->error;
}

void direct_free(struct direct *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	d->stop = true;
	pthread_cond_broadcast(&d->cond);
	pthread_mutex_unlock(&d->lock);
	end_workers(d);
	for (size_t i = 0; i < d->n_maps; i++)
		free(d->map[i].text);
	pthread_cond_destroy(&d->cond);
	pthread_mutex_destroy(&d->lock);
	free(d->map);
	free(d->vma);
	free(d->run);
	free(d);
}
