// SPDX-License-Identifier: Apache-2.0
/*
 * storeput.c - puts files into a store as a checkpoint, and gets them back, for tests of the tool
 *
 *   storeput put STORE TEXT NAME=FILE...    prints the id
 *   storeput get STORE ID NAME >FILE
 *   storeput parts STORE ID                 prints the parts' names
 *   storeput but STORE ID PREFIX...         publishes ID again without the parts of these names; prints the id
 *   storeput instead STORE ID NAME [FILE]   publishes ID again with FILE as that part, or without it; prints the id
 *   storeput replace STORE ID NAME [FILE]   the same under the id that it has
 *   storeput hold STORE                     keeps it open for writing until stdin ends
 *   storeput bytes SEED MIB >FILE           writes bytes that depend on the seed alone
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store.h"

#define CHUNK (1u << 20)

static int failed(const char *what)
{
	fprintf(stderr, "storeput: %s\n", what);
	return 1;
}

static int put_file(struct store_writer *w, const char *path, struct store_ref *ref)
{
	static char buf[CHUNK];
	int fd = open(path, O_RDONLY);
	struct store_object *o;
	uint64_t off = 0;
	ssize_t n = 0;
	int err = fd < 0 ? -errno : store_object_begin(w, &o);

	if (err)
		return err;
	while (!err && (n = read(fd, buf, CHUNK)) > 0) {
		err = store_object_write(o, off, buf, n);
		off += n;
	}
	close(fd);
	if (err || n < 0) {
		store_object_abort(o);
		return err ?: -EIO;
	}
	return store_object_end(o, 0, ref);
}

static int put(struct store *s, const char *text, int n, char **args)
{
	struct store_part part[64];
	struct store_writer *w;
	char id[STORE_ID];

	if (n > 64 || store_writer_open(s, 0, &w))
		return failed(store_why()->text);
	for (int i = 0; i < n; i++) {
		char *file = strchr(args[i], '=');

		if (!file)
			return failed("NAME=FILE");
		*file++ = 0;
		part[i].name = args[i];
		if (put_file(w, file, &part[i].ref))
			return failed(store_why()->text);
	}
	if (store_writer_flush(w) || store_publish(s, part, n, text, id))
		return failed(store_why()->text);
	store_writer_close(w);
	puts(id);
	return 0;
}

static int get(struct store *s, const char *id, const char *name)
{
	static char buf[CHUNK];
	const struct store_ref *ref;
	struct store_checkpoint *c;
	struct store_reader *r;
	uint64_t off = 0;
	ssize_t n;

	if (store_checkpoint_open(s, id, &c))
		return failed(store_why()->text);
	ref = store_checkpoint_find(c, name);
	if (!ref)
		return failed("no such part");
	if (store_object_open(s, ref, &r))
		return failed(store_why()->text);
	while ((n = store_read(r, off, buf, CHUNK)) > 0) {
		fwrite(buf, n, 1, stdout);
		off += n;
	}
	store_reader_close(r);
	store_checkpoint_close(c);
	return n < 0 ? failed(store_why()->text) : fflush(stdout) ? 1 : 0;
}

static int parts(struct store *s, const char *id)
{
	const struct store_part *all;
	struct store_checkpoint *c;
	size_t n;

	if (store_checkpoint_open(s, id, &c))
		return failed(store_why()->text);
	n = store_checkpoint_parts(c, &all);
	for (size_t i = 0; i < n; i++)
		puts(all[i].name);
	store_checkpoint_close(c);
	return 0;
}

static bool begins(const char *name, char *const *prefix, int n)
{
	for (int i = 0; i < n; i++)
		if (!strncmp(name, prefix[i], strlen(prefix[i])))
			return true;
	return false;
}

static int but(struct store *s, const char *from, int n, char **prefix)
{
	const struct store_part *all;
	struct store_checkpoint *c;
	struct store_part *part;
	size_t count, left = 0;
	char id[STORE_ID];

	if (store_checkpoint_open(s, from, &c))
		return failed(store_why()->text);
	count = store_checkpoint_parts(c, &all);
	part = calloc(count + 1, sizeof(*part));
	for (size_t i = 0; i < count && part; i++)
		if (!begins(all[i].name, prefix, n))
			part[left++] = all[i];
	if (!part || store_publish(s, part, left, store_checkpoint_json(c), id))
		return failed(store_why()->text);
	free(part);
	store_checkpoint_close(c);
	puts(id);
	return 0;
}

static int instead(struct store *s, const char *from, const char *name, const char *file, bool replace)
{
	const struct store_part *all;
	struct store_checkpoint *c;
	struct store_writer *w;
	struct store_part *part;
	size_t count, left = 0;
	char id[STORE_ID];

	if (store_checkpoint_open(s, from, &c) || store_writer_open(s, 0, &w))
		return failed(store_why()->text);
	count = store_checkpoint_parts(c, &all);
	part = calloc(count + 1, sizeof(*part));
	for (size_t i = 0; i < count && part; i++) {
		bool it = !strcmp(all[i].name, name);

		part[left] = all[i];
		if (it && file && put_file(w, file, &part[left].ref))
			return failed(store_why()->text);
		left += !it || file;
	}
	if (!part || store_writer_flush(w) || (replace && store_remove(s, from)))
		return failed(store_why()->text);
	snprintf(id, sizeof(id), "%s", from);
	if (replace ? store_publish_as(s, part, left, store_checkpoint_json(c), id) :
		      store_publish(s, part, left, store_checkpoint_json(c), id))
		return failed(store_why()->text);
	store_writer_close(w);
	free(part);
	store_checkpoint_close(c);
	puts(id);
	return 0;
}

static int bytes(uint64_t x, long mib)
{
	for (long i = 0; i < mib << 17; i++) {
		uint64_t word;

		x = x * 6364136223846793005 + 1442695040888963407;
		word = x ^ x >> 29;
		fwrite(&word, sizeof(word), 1, stdout);
	}
	return fflush(stdout) ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct store *s;
	struct why why = { 0 };
	int rc;

	if (argc < 3)
		return failed("put, get or hold, and a store");
	if (!strcmp(argv[1], "bytes") && argc == 4)
		return bytes(strtoull(argv[2], NULL, 10), atol(argv[3]));
	if (store_open(&s, argv[2], *argv[1] == 'g' ? 0 : STORE_RW, &why))
		return failed(why.text);
	if (!strcmp(argv[1], "put") && argc > 3) {
		rc = put(s, argv[3], argc - 4, argv + 4);
	} else if (!strcmp(argv[1], "get") && argc == 5) {
		rc = get(s, argv[3], argv[4]);
	} else if (!strcmp(argv[1], "but") && argc > 3) {
		rc = but(s, argv[3], argc - 4, argv + 4);
	} else if (!strcmp(argv[1], "parts") && argc == 4) {
		rc = parts(s, argv[3]);
	} else if ((!strcmp(argv[1], "instead") || !strcmp(argv[1], "replace")) && (argc == 5 || argc == 6)) {
		rc = instead(s, argv[3], argv[4], argv[5], *argv[1] == 'r');
	} else {
		puts("held");
		fflush(stdout);
		rc = getchar() != EOF;
	}
	store_close(s);
	return rc;
}
