// SPDX-License-Identifier: Apache-2.0
/*
 * readback.c - reads a checkpoint as the command that has written it does before it ends the job
 *
 *   readback STORE ID [PART]      prints what a restore would say, or nothing; the exit status is 1 then
 *
 * PART is one that cannot be read: the store says so when it is opened.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_bring.h"
#include "store.h"

static struct store_ref bad;
static bool is_bad;

int __real_store_object_open(struct store *s, const struct store_ref *ref, struct store_reader **r);
int __wrap_store_object_open(struct store *s, const struct store_ref *ref, struct store_reader **r);
int __wrap_store_object_open(struct store *s, const struct store_ref *ref, struct store_reader **r)
{
	struct store_ref other = *ref;

	/* One that is in no store: its digest is another one. */
	if (is_bad && !memcmp(ref, &bad, sizeof(bad)))
		other.b[0] ^= 0xff;
	return __real_store_object_open(s, &other, r);
}

static int spoil(const char *path, const char *id, const char *name)
{
	const struct store_ref *ref;
	struct store_checkpoint *c;
	struct why why = { 0 };
	struct store *s;

	if (store_open(&s, path, 0, &why) || store_checkpoint_open(s, id, &c))
		return 1;
	ref = store_checkpoint_find(c, name);
	if (ref)
		bad = *ref;
	is_bad = ref;
	store_checkpoint_close(c);
	store_close(s);
	return !ref;
}

int main(int argc, char **argv)
{
	struct why why = { 0 };
	int err;

	if (argc < 3 || (argc > 3 && spoil(argv[1], argv[2], argv[3]))) {
		puts("readback: no such checkpoint, or no such part");
		return 2;
	}
	err = bring_read_back(argv[1], 0, argv[2], &why);
	if (err)
		printf("%s\n", *why.text ? why.text : strerror(-err));
	return !!err;
}
