/* SPDX-License-Identifier: Apache-2.0 */
/*
 * images.h - streams CRIU's images through pipes: a dump's into a sink, a restore's from a source
 *
 * images.c serves CRIU's --stream protocol: a socket in a folder, on which CRIU sends the name of
 * an image and the end of a pipe. Many pipes are open at once.
 *
 * Small images are packed into one object, "small": a dump has some hundred of them, and each would
 * cost a page. Large images (pages, contents) are objects with CRIU's names:
 *
 *   object "small":  { u32le length of the name; u32le 0; u64le length of the image; name; image } …
 *                    sorted by name
 */
#ifndef UPROXY_CKPT_IMAGES_H
#define UPROXY_CKPT_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * The sink of a dump. All calls come from one thread, which is not the caller's; several objects
 * are open at once. Each returns 0 or -errno. An error fails the dump; the objects that are open
 * are ended all the same, with whole = 0.
 */
struct images_sink {
	int (*begin)(void *arg, const char *name, void **object);
	/* len is a multiple of 4096 but for an object's last write; offsets ascend without gaps */
	int (*write)(void *object, uint64_t off, const void *data, size_t len);
	int (*end)(void *object, int whole);
	void *arg;
};

/* The source of a restore. Different threads may call it at once, for different objects. */
struct images_source {
	int (*open)(void *arg, const char *name, void **object, uint64_t *size);  /* -ENOENT */
	int (*read)(void *object, uint64_t off, void *data, size_t len);	/* all of it */
	/*
	 * read in two steps, of whole pages to page-aligned memory; several may be under way. Each
	 * fetch is followed by its fetch_end. NULL: read is used.
	 */
	int (*fetch)(void *object, uint64_t off, void *data, size_t len, void **ticket);
	int (*fetch_end)(void *object, void *ticket);
	bool (*fetch_there)(void *object, void *ticket);	/* fetch_end need not wait; or NULL */
	void (*close)(void *object);
	void *arg;
};

struct images;
struct why;

/* Listens in dir (streamer-capture.sock or streamer-serve.sock), in threads of its own. */
int images_capture(struct images **i, const char *dir, const struct images_sink *sink);
int images_serve(struct images **i, const char *dir, const struct images_source *source);

/*
 * Reads the small images of a dump as a restore does before it makes processes. -ENOTSUP: the tree has what CRIU cannot
 * restore, which *why names; -EBADMSG: *why names the damaged image; or an error of the source.
 */
int images_check(const struct images_source *source, struct why *why);

/* A dump: adds a small image that CRIU has not streamed. Before images_settle(). */
int images_add(struct images *i, const char *name, const void *data, size_t len);

/* A restore: calls each with every small image, until it returns not 0, and returns that. */
int images_each(struct images *i, int (*each)(void *arg, const char *name, const void *data,
					      size_t len), void *arg);

/*
 * All of a small image, or NULL: there is none of that name. In a dump after images_gather(). What says which
 * processes and files there are is small at any size: pstree.img, files.img, remap-fpath.img and fdinfo-N.img.
 */
const char *images_text(struct images *i, const char *name, size_t *len);

/* A restore: CRIU, which has not been started, gets text in place of that image. Takes text. */
int images_replace(struct images *i, const char *name, char *text, size_t len);

/*
 * A dump. images_gather: waits until all that CRIU has sent so far has come; images_edit then replaces a small image
 * (-ENOENT), and takes text. images_settle: until all is in the sink. 0, or -errno of the first failure.
 */
int images_gather(struct images *i);
int images_edit(struct images *i, const char *name, char *text, size_t len);
int images_settle(struct images *i);

/*
 * A restore. images_direct: are there pages that bypass CRIU? images_fill writes them, when all
 * processes exist and do not run yet; find returns our pid of a process by its pid in the images.
 */
bool images_direct(const struct images *i);
int images_fill(struct images *i, pid_t (*find)(void *arg, int pid), void *arg);

/* Bytes of images so far; the first failure (0, -errno), and the image's name in what[64]. */
uint64_t images_bytes(const struct images *i);
int images_failed(struct images *i, char *what);

/*
 * A dump: when CRIU has asked for an image that it begins when it has frozen the tree, and for that of clocks: soon
 * after it reads CLOCK_MONOTONIC, with which a restored tree goes on. A restore: when that has been set, at
 * the latest, in *clock_ns. On this clock; 0: it has not.
 */
void images_asked(const struct images *i, uint64_t *process_ns, uint64_t *clock_ns);

/* A dump: an eventfd, of the images, that can be read when CRIU has asked for that first image. */
int images_still(const struct images *i);

/* Ends all threads, whatever CRIU does. 0, or -errno of the first failure. */
int images_close(struct images *i);

/* ------------------------------------------------------------------------- images_pages.c */

struct images_process {
	int pid, parent;	/* in the job's namespace; parent 0: none */
	int pages;		/* its memory is in "pages-N.img"; 0: in none */
};

/*
 * The processes of a dump, each once and by pid, from the object "small"; the caller frees *p. -EBADMSG: the object
 * is none.
 */
int images_processes(const void *small, size_t len, struct images_process **p, size_t *n);

/* ------------------------------------------------------------------------- images_store.c */

struct store;
struct store_writer;
struct store_checkpoint;
struct store_ref;
struct images_parts;

/*
 * A sink into the store. After the dump images_parts_get() returns the objects' names ("criu/small"
 * …; they live as long as the parts) and refs; the caller flushes the writer and publishes them.
 * The writer must have no other user meanwhile.
 */
int images_to_store(struct images_parts **p, struct store_writer *w, struct images_sink *sink);
size_t images_parts_count(const struct images_parts *p);
const char *images_parts_get(const struct images_parts *p, size_t i, struct store_ref *ref);
void images_parts_free(struct images_parts *p);

/* A source from a checkpoint in the store; *from must live as long as the source. */
struct images_stored {
	struct store *store;
	struct store_checkpoint *checkpoint;
};

void images_from_store(struct images_stored *from, struct images_source *source);

#endif
