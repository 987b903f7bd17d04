/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image_i.h - images as image.c keeps them and bytes.c reads them
 */
#ifndef IMAGE_I_H
#define IMAGE_I_H

#include "answer.h"
#include "names.h"

struct image {
	struct sv_session *session;
	struct image *next, *gone_next;
	unsigned int refs;	/* image.c's lock */
	bool library;
	bool ctx_gone;		/* of a module; image.c's lock */
	uint64_t handle, ctx;
	uint64_t seq;		/* of the record that loaded it */
	void *real;
	struct answer end;	/* .s is not NULL: the record that waits for the unloading */
	struct sv_image *record;	/* that loaded it, record_len bytes */
	uint32_t record_len;
	struct names *names;	/* of its variables, once a dump has looked; or NULL */
	/* A library's; image.c's lock. See image_seen(). */
	uint64_t *seen;
	size_t nseen;
	bool seen_everywhere, managed_seen;

	const void *image;	/* what the driver is given */
	void *copy;		/* our own copy of it, or NULL */
	struct held *held;	/* what the program's file had; a library's as long as the image lives, or NULL */
};

/* Options of the JIT, and the driver's logs. */
struct jit {
	CUjit_option opt[40];
	void *value[40];
	unsigned int n;
	char *info, *error;
};

int image_check_record(struct call *k, const struct sv_image *a);
/* 0, a CUresult, or -errno: the client has broken a rule. */
int image_read(struct call *k, const struct sv_image *a, struct image *im);
void image_release_bytes(struct image *im);

int jit_begin(struct call *k, const struct sv_image *a, struct jit *j);
void jit_end(struct sv_session *s, const struct sv_image *a, struct jit *j);

/*
 * images_walk: calls fn with each loaded image, oldest first, until it returns not 0. image_names:
 * an image's variables, read once; they remain the image's. 0 or -errno, -EIO the image cannot be
 * read again. Consumer.
 */
typedef int (*image_visit)(void *arg, struct image *im);
int images_walk(image_visit fn, void *arg);
int image_names(struct image *im, const struct names **names);

/*
 * A library comes into a context when it is first used there. Once its kernels are launched or put
 * into a graph, or the client has asked for a variable, addresses of its variables in that context
 * may be known: it has been seen there. Elsewhere a dump does not ask for them, which would load the
 * library, and they may lie elsewhere after a restore.
 * image_managed_seen: the client knows managed variables, which belong to no context.
 * image_seen: it was seen before the dump that is restored. A handle of no library is ignored.
 */
void image_seen(struct sv_session *s, uint64_t library, uint64_t ctx);
bool image_is_seen(const struct image *im, uint64_t ctx);
bool image_managed_seen(const struct image *im);

/* Does the image at p end within len bytes, by its own headers? 0 or a CUresult. */
int image_whole(const uint8_t *p, uint64_t len);

#endif
