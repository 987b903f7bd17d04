/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_test.h - helpers of the store's tests: stores in a scratch folder, contents by seed
 */
#ifndef SELFTESTS_CKPT_STORE_TEST_H
#define SELFTESTS_CKPT_STORE_TEST_H

#include "../../harness/leaks.h"
#include "../../harness/patience.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "edges.h"
#include "store_i.h"

#define PAGE ((size_t)STORE_PAGE)
#define MB   (1ul << 20)

static uint64_t seed_state = 88172645463325252ull;

static inline uint64_t rnd(void)
{
	seed_state ^= seed_state << 13;
	seed_state ^= seed_state >> 7;
	seed_state ^= seed_state << 17;
	return seed_state;
}

static inline void seed(uint64_t s)
{
	seed_state = s * 0x9e3779b97f4a7c15ull + 1;
}

/* Ends the test's process on failure; usable where the harness's macros are not. */
static inline void need(bool good, const char *what, int line)
{
	if (good)
		return;
	fprintf(stderr, "# line %d: %s: %s\n", line, what, store_why()->text);
	abort();
}
#define NEED(x)	   need((x), #x, __LINE__)
#define NEED_OK(x) need((x) >= 0, #x, __LINE__)

static char scratch[200];

/* A new empty folder's path, one for each test. */
static inline const char *new_scratch(void)
{
	const char *base = getenv("TMPDIR");

	snprintf(scratch, sizeof(scratch), "%s/store-XXXXXX", base ? base : "/tmp");
	NEED(mkdtemp(scratch) != NULL);
	return scratch;
}

static inline void shell(const char *fmt, ...)
{
	char cmd[1000];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(cmd, sizeof(cmd), fmt, ap);
	va_end(ap);
	need(system(cmd) == 0, cmd, 0);
}

static inline void drop_scratch(void)
{
	shell("rm -rf '%s'", scratch);
}

static inline void make_store(const char *dir, int zstd)
{
	struct store_params p = { .zstd = zstd, .seed = 42 };
	struct why why = { 0 };

	if (store_create(dir, &p, &why)) {
		fprintf(stderr, "# %s\n", why.text);
		abort();
	}
}

static inline struct store *open_store(const char *dir, unsigned int flags)
{
	struct store *s;
	struct why why = { 0 };

	if (store_open(&s, dir, flags, &why)) {
		fprintf(stderr, "# %s\n", why.text);
		abort();
	}
	return s;
}

/* Compressible words, different for each seed and place. */
static inline void fill(uint8_t *p, size_t len, uint64_t s)
{
	seed(s);
	for (size_t i = 0; i < len; i++)
		p[i] = i % 8 < 3 ? rnd() >> 11 : i;
}

static inline int put_at(struct store_writer *w, const void *p, size_t len, struct store_ref *ref)
{
	struct store_object *o;
	int err = store_object_begin(w, &o);

	if (err)
		return err;
	err = store_object_write(o, 0, p, len);
	if (err) {
		store_object_abort(o);
		return err;
	}
	return store_object_end(o, 0, ref);
}

/* Whether the object has these bytes. */
static inline int compare(struct store *s, const struct store_ref *ref, const void *p, size_t len)
{
	uint8_t *q = aligned_alloc(PAGE, (len + PAGE) / PAGE * PAGE);
	struct store_reader *r;
	int err = store_object_open(s, ref, &r);
	ssize_t n;

	if (!err) {
		memset(q, 0xa5, len);
		n = store_read(r, 0, q, len + 1);
		err = n < 0 ? n : store_size(r) != len || (size_t)n != len || memcmp(p, q, len) ?
			-EILSEQ : 0;
		store_reader_close(r);
	}
	free(q);
	return err;
}

static inline void say_bad(void *arg, const char *file, uint64_t at, const char *what)
{
	(void)arg;
	fprintf(stderr, "# %s, byte %lld: %s\n", file, (long long)at, what);
}

static inline int verify(struct store *s, bool loud)
{
	struct store_verify_stats st;

	return store_verify(s, loud ? say_bad : NULL, NULL, NULL, NULL, &st);
}

/* Overwrites len bytes of a file of the store, at offset `at`. */
static inline void poke(const char *dir, const char *file, size_t at, const void *p, size_t len)
{
	char path[400];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	fd = open(path, O_WRONLY);
	NEED(fd >= 0 && pwrite(fd, p, len, at) == (ssize_t)len);
	close(fd);
}

#endif
