// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_corpus.c - compiles or only analyses the PTX in libraries, and counts refusals.
 *
 * usage: ptx_corpus [-c] [-t] [-s part/parts] [-n entries] [-i image] [-e name]... [-j jobs]
 *                   [-a seconds] [-f forms] [-l log] [-o json] [-v] [-L] file...
 *   (neither)   parse and analyse every entry; translate those with a form of an instruction
 *               that no accepted entry has had
 *   -t          translate every entry, without generating code
 *   -c          compile, and load from a cache what was compiled
 *   -s -n -i -e a part of the entries, chosen by their names; the first so many of an image; those
 *               of one image of a library; by name
 *   -L          link all images of a library into one program, as relocatable code is
 *   -a          seconds of CPU time that an entry may take (600)
 *   -f          append the forms of instructions that were accepted to a file
 *   -l          one line for each entry; entries that are in the log already are skipped
 * A file is PTX text, or a library with fatbins inside.  Exit status 1: something was refused.
 * Entries that call a function of the program, which the library links to them at run time, count
 * separately.
 *
 * A child reads each image, so that a crash costs one entry, which is named; children and report
 * share only the log.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <lz4.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <dirent.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "../../../uproxy/softgpu/ptx/ptx.h"

enum { MAX_JOBS = 16, MAX_NAMES = 64, NFORMS = 1 << 20, MAX_WHY = 2000, MAX_LIBS = 256,
       MAX_LINKED = 1024 };

static struct {
	bool compile, translate, verbose, link;
	unsigned int part, parts, per_image, jobs, seconds, nnames, image;
	const char *names[MAX_NAMES], *log, *json, *forms;
} opt = { .image = ~0u, .parts = 1, .per_image = ~0u, .jobs = 1, .seconds = 600 };

/* What a child says to its parent in shared memory. */
struct job {
	pid_t pid;
	const char *lib;
	unsigned int image;
	const uint8_t *data;	/* a fatbin's entry, or text if text_len */
	size_t text_len;
	const uint8_t **linked;	/* or entries of fatbins, ended by NULL */
	_Atomic unsigned int at;	/* the entry under way */
	_Atomic int started;		/* it is under way, not finished */
	char name[256];
};

static struct job *jobs;
static const uint8_t **linked;		/* with -L: of the library under way */
static unsigned int nlinked;
static _Atomic uint64_t *forms;		/* hashes of accepted forms */
static int log_fd = -1, forms_fd = -1;
static uint64_t *done;			/* hashes of what the log has, sorted */
static size_t ndone;
static char cache[64];

static uint64_t hash(uint64_t h, const char *s)
{
	for (; *s; s++)
		h = (h ^ (uint8_t)*s) * 0x100000001b3ull;
	return h ^ h >> 29;
}

static uint64_t entry_id(const char *lib, unsigned int image, unsigned int entry)
{
	char s[64];

	snprintf(s, sizeof(s), " %u %u", image, entry);
	return hash(hash(0xcbf29ce484222325ull, lib), s);
}

static double now(clockid_t c)
{
	struct timespec t;

	clock_gettime(c, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* ---- forms ---- */

static bool form_seen(uint64_t h, bool add)
{
	uint32_t i = h % NFORMS, n;

	for (n = 0; n < NFORMS; n++, i = (i + 1) % NFORMS) {
		uint64_t v = forms[i];

		if (!v && (!add || atomic_compare_exchange_strong(&forms[i], &v, h)))
			return add;
		if (v == h)
			return true;
	}
	return false;
}

struct fresh {
	char **form;
	size_t n, cap;
};

static uint64_t form_hash(const char *form)
{
	return hash(0xcbf29ce484222325ull, form) | 1;
}

static bool known(void *user, const char *form)
{
	struct fresh *f = user;

	if (form_seen(form_hash(form), false))
		return true;
	if (f->n == f->cap) {
		f->cap = f->cap ? f->cap * 2 : 256;
		f->form = realloc(f->form, f->cap * sizeof(*f->form));
		if (!f->form)
			abort();
	}
	f->form[f->n] = strdup(form);
	if (!f->form[f->n++])
		abort();
	return false;
}

static void accept_forms(struct fresh *f, bool ok)
{
	while (f->n) {
		char *s = f->form[--f->n];

		if (ok && !form_seen(form_hash(s), false)) {
			form_seen(form_hash(s), true);
			if (forms_fd >= 0)
				dprintf(forms_fd, "%s\n", s);
		}
		free(s);
	}
	free(f->form);
}

/* ---- the child ---- */

static void record(const struct job *j, unsigned int i, const char *name, int ret, double t,
		   double cached, const char *err)
{
	char line[1400];
	int n = snprintf(line, sizeof(line), "%s %u %u %d %.4f %.5f %.500s\t%.700s\n", j->lib,
			 j->image, i, ret, t, cached, *name ? name : "?", err);

	if (n > (int)sizeof(line) - 1) {
		n = sizeof(line) - 1;
		line[n - 1] = '\n';
	}
	if (write(log_fd, line, n) != n) {
		perror("log");
		_exit(3);
	}
	if (opt.verbose)
		printf("%s", line);
}

/* Each place for a child has a cache of its own: they are emptied after every entry. */
static const char *cache_of(const struct job *j, char *buf, size_t n)
{
	snprintf(buf, n, "%s/%td", cache, j - jobs);
	return buf;
}

static void empty_cache(const struct job *j)
{
	char buf[96];
	DIR *d = opendir(cache_of(j, buf, sizeof(buf)));
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

static int compile_one(const struct job *j, struct ptx_module *m, unsigned int i, double *t,
		       double *cached, char *err, size_t errlen)
{
	double t0 = now(CLOCK_THREAD_CPUTIME_ID);
	struct ptx_kernel *k;
	int ret = ptx_compile(m, i, NULL, &k, err, errlen);

	*t = now(CLOCK_THREAD_CPUTIME_ID) - t0;
	if (ret)
		return ret;
	ptx_kernel_free(k);
	t0 = now(CLOCK_THREAD_CPUTIME_ID);
	ret = ptx_compile(m, i, NULL, &k, err, errlen);
	*cached = now(CLOCK_THREAD_CPUTIME_ID) - t0;
	if (!ret)
		ptx_kernel_free(k);
	empty_cache(j);
	return ret;
}

static bool wanted(const struct job *j, const char *name, unsigned int i)
{
	uint64_t id = entry_id(j->lib, j->image, i);
	unsigned int k;
	size_t lo = 0, hi = ndone;

	if (i >= opt.per_image || hash(id, name) % opt.parts != opt.part)
		return false;
	for (k = 0; k < opt.nnames; k++)
		if (!strcmp(opt.names[k], name))
			break;
	if (opt.nnames && k == opt.nnames)
		return false;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (done[mid] == id)
			return false;
		if (done[mid] < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return true;
}

/* The machine may be busy with other things. */
static void time_limit(unsigned int seconds)
{
	struct itimerval t = { .it_value.tv_sec = seconds };

	if (setitimer(ITIMER_PROF, &t, NULL))
		perror("setitimer");
}

static void one(struct job *j, struct ptx_module *m, unsigned int i)
{
	const char *name = ptx_module_entry(m, i)->name;
	double t = 0, cached = 0, t0 = now(CLOCK_THREAD_CPUTIME_ID);
	struct fresh f = { 0 };
	char err[512] = "";
	int ret;

	snprintf(j->name, sizeof(j->name), "%s", name);
	j->at = i;
	j->started = 1;
	time_limit(opt.seconds);
	if (opt.compile) {
		ret = compile_one(j, m, i, &t, &cached, err, sizeof(err));
	} else {
		ret = ptx_check(m, i, opt.translate ? NULL : known, &f, err, sizeof(err));
		t = now(CLOCK_THREAD_CPUTIME_ID) - t0;
		accept_forms(&f, !ret);
	}
	time_limit(0);
	record(j, i, name, ret, t, cached, ret ? err : "");
	j->started = 0;
	j->at = i + 1;
}

static char *unpack(const uint8_t *p, size_t *len)
{
	uint32_t head, packed;
	uint64_t size, flags, full;
	size_t n;
	char *buf;

	memcpy(&head, p + 4, 4);
	memcpy(&packed, p + 16, 4);
	memcpy(&size, p + 8, 8);
	memcpy(&flags, p + 40, 8);
	memcpy(&full, p + 56, 8);
	if (!(flags & 0xa000))
		full = size;
	if (full > 1ull << 30)
		return NULL;
	buf = malloc(full + 1);
	if (!buf)
		return NULL;
	if (!(flags & 0xa000)) {
		memcpy(buf, p + head, n = full);
	} else if (flags & 0x8000) {
		n = ZSTD_decompress(buf, full, p + head, packed);
	} else {
		int r = LZ4_decompress_safe((const char *)p + head, buf, packed, full);

		n = r < 0 ? SIZE_MAX : (size_t)r;
	}
	if (n > full) {
		free(buf);
		return NULL;
	}
	buf[n] = 0;
	*len = strlen(buf);
	return buf;
}

/* The job's texts; how many, or 0 where one cannot be unpacked. */
static unsigned int texts_of(const struct job *j, struct ptx_source *s)
{
	unsigned int i;

	if (j->text_len) {
		*s = (struct ptx_source){ (const char *)j->data, j->text_len };
		return 1;
	}
	if (j->data) {
		s->text = unpack(j->data, &s->len);
		return s->text != NULL;
	}
	for (i = 0; j->linked[i]; i++) {
		s[i].text = unpack(j->linked[i], &s[i].len);
		if (!s[i].text)
			return 0;
	}
	return i;
}

static void child(struct job *j)
{
	static struct ptx_source s[MAX_LINKED];
	struct ptx_module *m;
	unsigned int i, n = texts_of(j, s);
	char err[512], buf[96];

	if (!n) {
		record(j, ~0u, "(image)", -EINVAL, 0, 0, "cannot be unpacked");
		_exit(0);
	}
	if (opt.compile && ptx_set_cache(cache_of(j, buf, sizeof(buf))))
		_exit(3);
	if (ptx_module_parse(s, n, &m, err, sizeof(err))) {
		record(j, ~0u, "(image)", -EINVAL, 0, 0, err);
		_exit(0);
	}
	n = ptx_module_nentries(m);
	for (i = j->at; i < n; i++)
		if (wanted(j, ptx_module_entry(m, i)->name, i))
			one(j, m, i);
	fflush(stdout);
	_exit(0);	/* the kernel takes the memory back faster */
}

/* ---- the parent ---- */

static void start(struct job *j)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(3);
	}
	if (!pid)
		child(j);
	j->pid = pid;	/* the parent's word alone: *j is shared */
}

static void reap(void)
{
	int status;
	pid_t pid = wait(&status);
	struct job *j = jobs;
	char why[64];

	while (j->pid != pid)
		if (++j == jobs + MAX_JOBS)
			return;
	j->pid = 0;
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return;
	if (!j->started) {
		fprintf(stderr, "a child ended by status 0x%x\n", status);
		exit(3);
	}
	snprintf(why, sizeof(why), WTERMSIG(status) == SIGPROF ? "no end in %u s" :
		 "crash: signal %u", WTERMSIG(status) == SIGPROF ? opt.seconds : WTERMSIG(status));
	record(j, j->at, j->name, -EFAULT, 0, 0, why);
	j->started = 0;
	j->at++;
	start(j);
}

static void image(const char *lib, unsigned int n, const uint8_t *data, size_t text_len)
{
	unsigned int i, busy = 0;
	struct job *j = NULL;

	if (opt.image != ~0u && opt.image != n)
		return;
	if (opt.link && data) {
		if (nlinked == MAX_LINKED || (!linked && !(linked = calloc(MAX_LINKED + 1,
								      sizeof(*linked))))) {
			fprintf(stderr, "%s: too many images: %u\n", lib, nlinked);
			exit(3);
		}
		linked[nlinked++] = data;
		return;
	}
	for (;; reap()) {
		for (busy = i = 0; i < MAX_JOBS; i++) {
			busy += jobs[i].pid != 0;
			if (!jobs[i].pid)
				j = &jobs[i];
		}
		if (busy < opt.jobs)
			break;
	}
	j->lib = lib;
	j->image = n;
	j->data = data;
	j->text_len = text_len;
	j->linked = linked;
	j->at = 0;
	j->started = 0;
	start(j);
}

static void fatbins(const char *lib, const uint8_t *p, size_t len, unsigned int *n)
{
	const uint8_t *end = p + len, *q, *e, *stop;
	uint32_t head;
	uint64_t size;

	/* aligned in the file; a section need not be (cuFFT 12's .ldata) */
	p += -(uintptr_t)p & 7;
	q = p;
	while (q + 16 <= end) {
		if (*(const uint32_t *)q != 0xba55ed50 || *(const uint16_t *)(q + 6) != 16) {
			q += 8;
			continue;
		}
		memcpy(&size, q + 8, 8);
		if (size > (uint64_t)(end - q) - 16) {
			q += 8;
			continue;
		}
		stop = q + 16 + size;
		for (e = q + 16; e + 64 <= stop; e += head + size) {
			memcpy(&head, e + 4, 4);
			memcpy(&size, e + 8, 8);
			if (head < 64 || head > stop - e || size > (uint64_t)(stop - e) - head)
				break;
			if (*(const uint16_t *)e == 1)
				image(lib, (*n)++, e, 0);
		}
		q = p + ((stop - p + 7) & ~7ull);
	}
}

static void library(const char *lib, const uint8_t *p, size_t len)
{
	const Elf64_Ehdr *h = (const void *)p;
	const Elf64_Shdr *s = (const void *)(p + h->e_shoff);
	unsigned int i, rest, n = 0;

	if (len < sizeof(*h) || memcmp(p, ELFMAG, 4) || h->e_shoff > len ||
	    (len - h->e_shoff) / sizeof(*s) < h->e_shnum || h->e_shstrndx >= h->e_shnum) {
		if (len > 64 && memmem(p, len < 65536 ? len : 65536, ".version", 8))
			image(lib, 0, p, len);
		else
			fprintf(stderr, "%s: neither a library nor PTX\n", lib);
		return;
	}
	/* cuFFT keeps its own among constants: those come last, so that images keep their numbers */
	for (rest = 0; rest < 2; rest++)
		for (i = 0; i < h->e_shnum; i++) {
			const char *name = (const char *)p + s[h->e_shstrndx].sh_offset +
					   s[i].sh_name;
			bool fat = strstr(name, "fatbin") && !strstr(name, "Segment");

			if (s[i].sh_type == SHT_PROGBITS && fat == !rest &&
			    !(s[i].sh_flags & SHF_EXECINSTR) && s[i].sh_offset <= len &&
			    s[i].sh_size <= len - s[i].sh_offset)
				fatbins(lib, p + s[i].sh_offset, s[i].sh_size, &n);
		}
	if (nlinked)
		image(lib, 0, NULL, 0);
	linked = NULL;	/* its job needs it */
	nlinked = 0;
}

static int file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const char *slash = strrchr(path, '/');
	struct stat st;
	void *p;

	if (fd < 0 || fstat(fd, &st) || !st.st_size) {
		perror(path);
		return 2;
	}
	p = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (p == MAP_FAILED) {
		perror(path);
		return 2;
	}
	library(slash ? slash + 1 : path, p, st.st_size);	/* stays mapped for the children */
	return 0;
}

/* ---- the report ---- */

struct lib {
	char name[64];
	unsigned long images, entries, unlinked, refused;
	double worst;
	unsigned int last_image;
};

static struct {
	char text[160], where[300];
	unsigned long n;
} why[MAX_WHY];
static unsigned int nwhy;
static struct lib libs[MAX_LIBS];
static unsigned int nlibs;
static float *times, *loads;
static size_t ntimes, nloads;

/* "line 12: mma.sync...: not supported" counts as one of its kind; so do names in other texts. */
static void count(const char *lib, const char *name, unsigned int im, const char *err)
{
	const char *p = err;
	unsigned int i;

	if (!strncmp(err, "line ", 5) && strstr(err, ": "))
		p = strstr(err, ": ") + 2;
	for (i = 0; i < nwhy; i++)
		if (!strncmp(why[i].text, p, sizeof(why[i].text) - 1))
			break;
	if (i == MAX_WHY)
		return;
	if (i == nwhy) {
		snprintf(why[i].text, sizeof(why[i].text), "%s", p);
		snprintf(why[i].where, sizeof(why[i].where), "%s image %u %.*s %.100s", lib, im,
			 (int)(p - err), err, name);
		nwhy++;
	}
	why[i].n++;
}

static struct lib *lib_of(const char *name)
{
	unsigned int i;

	for (i = 0; i < nlibs; i++)
		if (!strcmp(libs[i].name, name))
			return &libs[i];
	if (nlibs == MAX_LIBS)
		return &libs[MAX_LIBS - 1];
	snprintf(libs[nlibs].name, sizeof(libs[0].name), "%s", name);
	libs[nlibs].last_image = ~0u;
	return &libs[nlibs++];
}

static void add_time(float **v, size_t *n, double t)
{
	if (!(*n & (*n + 1)) || !*v) {	/* powers of two less one: room for the next */
		*v = realloc(*v, (*n * 2 + 2) * sizeof(**v));
		if (!*v)
			abort();
	}
	(*v)[(*n)++] = t;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static int by_id(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Calls @each for every line of the log. */
static void read_log(void (*each)(char *lib, unsigned int im, unsigned int e, int ret, double t,
				  double cached, char *name, char *err))
{
	FILE *f = fdopen(dup(log_fd), "r");
	char *line = NULL, lib[64];
	size_t cap = 0;
	unsigned int im, e;
	double t, c;
	int ret, n;

	if (!f)
		return;
	rewind(f);
	while (getline(&line, &cap, f) > 0) {
		char *tab = strchr(line, '\t');

		if (!tab || sscanf(line, "%63s %u %u %d %lf %lf %n", lib, &im, &e, &ret, &t, &c,
				   &n) != 6)
			continue;
		*tab = 0;
		tab[1 + strcspn(tab + 1, "\n")] = 0;
		each(lib, im, e, ret, t, c, line + n, tab + 1);
	}
	free(line);
	fclose(f);
}

static void note_done(char *lib, unsigned int im, unsigned int e, int ret, double t, double cached,
		      char *name, char *err)
{
	(void)ret, (void)t, (void)cached, (void)name, (void)err;
	if (!(ndone & (ndone + 1)) || !done) {
		done = realloc(done, (ndone * 2 + 2) * sizeof(*done));
		if (!done)
			abort();
	}
	done[ndone++] = entry_id(lib, im, e);
}

static double worst;
static char worst_name[600];

static void note_result(char *lib, unsigned int im, unsigned int e, int ret, double t,
			double cached, char *name, char *err)
{
	struct lib *l = lib_of(lib);

	(void)e;
	if (l->last_image != im)
		l->images++;
	l->last_image = im;
	l->entries++;
	if (ret) {
		ret == -ENOENT ? l->unlinked++ : l->refused++;
		count(lib, name, im, err);
		return;
	}
	add_time(&times, &ntimes, t);
	if (cached > 0)
		add_time(&loads, &nloads, cached);
	if (t > l->worst)
		l->worst = t;
	if (t > worst) {
		worst = t;
		snprintf(worst_name, sizeof(worst_name), "%s image %u %s", lib, im, name);
	}
}

static double at(const float *v, size_t n, double q)
{
	return n ? v[(size_t)((n - 1) * q)] : 0;
}

static void write_json(unsigned long entries, unsigned long unlinked, unsigned long refused)
{
	FILE *f = fopen(opt.json, "w");

	if (!f) {
		perror(opt.json);
		exit(3);
	}
	fprintf(f, "[\n");
	fprintf(f, "  {\"metric\": \"jit.entry_p50_ms\", \"value\": %.1f, \"unit\": \"ms\"},\n",
		at(times, ntimes, 0.5) * 1e3);
	fprintf(f, "  {\"metric\": \"jit.entry_p90_ms\", \"value\": %.1f, \"unit\": \"ms\"},\n",
		at(times, ntimes, 0.9) * 1e3);
	fprintf(f, "  {\"metric\": \"jit.entry_max_s\", \"value\": %.2f, \"unit\": \"s\"},\n", worst);
	fprintf(f, "  {\"metric\": \"jit.load_p50_ms\", \"value\": %.2f, \"unit\": \"ms\"},\n",
		at(loads, nloads, 0.5) * 1e3);
	fprintf(f, "  {\"metric\": \"jit.load_max_ms\", \"value\": %.2f, \"unit\": \"ms\"},\n",
		at(loads, nloads, 1) * 1e3);
	fprintf(f, "  {\"metric\": \"jit.entries\", \"value\": %lu, \"unit\": \"entries\"},\n", entries);
	fprintf(f, "  {\"metric\": \"jit.unlinked\", \"value\": %lu, \"unit\": \"entries\"},\n", unlinked);
	fprintf(f, "  {\"metric\": \"jit.refused\", \"value\": %lu, \"unit\": \"entries\"}\n]\n", refused);
	if (fclose(f)) {
		perror(opt.json);
		exit(3);
	}
}

static int report(void)
{
	unsigned long entries = 0, unlinked = 0, refused = 0;
	unsigned int i;

	read_log(note_result);
	qsort(times, ntimes, sizeof(*times), by_value);
	qsort(loads, nloads, sizeof(*loads), by_value);
	printf("%-44s %6s %8s %8s %8s %9s\n", "library", "images", "entries", "unlinked", "refused",
	       "worst s");
	for (i = 0; i < nlibs; i++) {
		printf("%-44s %6lu %8lu %8lu %8lu %9.2f\n", libs[i].name, libs[i].images,
		       libs[i].entries, libs[i].unlinked, libs[i].refused, libs[i].worst);
		entries += libs[i].entries;
		unlinked += libs[i].unlinked;
		refused += libs[i].refused;
	}
	printf("%lu entries %s, %lu to be linked, %lu refused; median %.0f ms, 90 %% %.0f ms, "
	       "worst %.2f s %s\n", entries - unlinked - refused,
	       opt.compile ? "compiled" : "accepted", unlinked, refused,
	       at(times, ntimes, 0.5) * 1e3, at(times, ntimes, 0.9) * 1e3, worst, worst_name);
	if (nloads)
		printf("from the cache: median %.2f ms, worst %.2f ms\n", at(loads, nloads, 0.5) * 1e3,
		       at(loads, nloads, 1) * 1e3);
	for (i = 0; i < nwhy; i++)
		printf("%6lu %s\n       first: %s\n", why[i].n, why[i].text, why[i].where);
	if (opt.json)
		write_json(entries, unlinked, refused);
	return refused ? 1 : 0;
}

static int options(int argc, char **argv)
{
	int o;

	while ((o = getopt(argc, argv, "cts:n:i:e:j:a:f:l:o:vL")) > 0) {
		switch (o) {
		case 'c': opt.compile = true; break;
		case 't': opt.translate = true; break;
		case 'n': opt.per_image = atoi(optarg); break;
		case 'i': opt.image = atoi(optarg); break;
		case 'j': opt.jobs = atoi(optarg); break;
		case 'a': opt.seconds = atoi(optarg); break;
		case 'f': opt.forms = optarg; break;
		case 'l': opt.log = optarg; break;
		case 'o': opt.json = optarg; break;
		case 'v': opt.verbose = true; break;
		case 'L': opt.link = true; break;
		case 's':
			if (sscanf(optarg, "%u/%u", &opt.part, &opt.parts) != 2 || !opt.parts)
				return -1;
			break;
		case 'e':
			if (opt.nnames == MAX_NAMES)
				return -1;
			opt.names[opt.nnames++] = optarg;
			break;
		default:
			return -1;
		}
	}
	return opt.jobs < 1 || opt.jobs > MAX_JOBS || optind == argc ? -1 : 0;
}

static bool busy(void)
{
	unsigned int i;

	for (i = 0; i < MAX_JOBS; i++)
		if (jobs[i].pid)
			return true;
	return false;
}

static void remove_caches(void)
{
	char buf[96];
	unsigned int i;

	for (i = 0; i < MAX_JOBS; i++) {
		empty_cache(&jobs[i]);
		rmdir(cache_of(&jobs[i], buf, sizeof(buf)));
	}
	rmdir(cache);
}

int main(int argc, char **argv)
{
	char path[] = "/tmp/ptx_corpus.XXXXXX";
	int ret = 0;

	if (options(argc, argv)) {
		fprintf(stderr, "usage: see the head of ptx_corpus.c\n");
		return 2;
	}
	setlinebuf(stdout);
	jobs = mmap(NULL, MAX_JOBS * sizeof(*jobs), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	forms = mmap(NULL, NFORMS * sizeof(*forms), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (jobs == MAP_FAILED || forms == MAP_FAILED)
		return 3;
	log_fd = opt.log ? open(opt.log, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644) :
			   memfd_create("log", MFD_CLOEXEC);
	if (log_fd < 0) {
		perror(opt.log);
		return 3;
	}
	if (opt.forms) {
		forms_fd = open(opt.forms, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
		if (forms_fd < 0) {
			perror(opt.forms);
			return 3;
		}
	}
	if (opt.compile && !mkdtemp(path))
		return 3;
	snprintf(cache, sizeof(cache), "%s", path);
	read_log(note_done);
	qsort(done, ndone, sizeof(*done), by_id);
	for (; optind < argc && !ret; optind++)
		ret = file(argv[optind]);
	while (busy())
		reap();
	if (opt.compile)
		remove_caches();
	return ret ? ret : report();
}
