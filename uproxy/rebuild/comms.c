// SPDX-License-Identifier: Apache-2.0
/*
 * comms.c - saves the communicators of a session and the job's board in the store, and loads them
 *
 * comm/save.c knows the bytes. They are read before the log is replayed, which must not run what was parked,
 * and turned into communicators when all else of the session is there.
 */
#include <stdlib.h>

#include "comm_i.h"
#include "rebuild.h"
#include "store.h"

#define COMMS_MAX (8ull << 30)

static struct {
	void *bytes;
	size_t len;
} loaded;

static int put_board(struct store_writer *w, struct store_ref *ref)
{
	void *image;
	size_t len;
	int rc = comm_save_board(&image, &len);

	if (!rc && image)
		rc = store_object_whole(w, image, len, ref);
	free(image);
	return rc;
}

int comms_dump(struct sv_session *s, struct store_writer *w, struct store_ref *comms, struct store_ref *board,
	       struct why *why)
{
	void *bytes;
	size_t len;
	int rc;

	if (!comm_there())
		return 0;
	rc = comm_save(s, &bytes, &len, why);
	if (rc)
		return rc;
	rc = store_object_whole(w, bytes, len, comms);
	free(bytes);
	return store_failed(why, rc ?: put_board(w, board));
}

int comms_expect(struct store *st, const struct store_ref *ref, struct why *why)
{
	static const struct store_ref none;
	struct store_reader *r;
	ssize_t got;
	int rc;

	if (!memcmp(ref, &none, sizeof(none)))
		return 0;
	if (store_ref_size(ref) > COMMS_MAX)
		return why_set(why, -EBADMSG, "these are no saved communicators");
	rc = store_failed(why, store_object_open(st, ref, &r));
	if (rc)
		return rc;
	loaded.len = store_size(r);
	loaded.bytes = malloc(loaded.len + 1);
	got = loaded.bytes ? store_read(r, 0, loaded.bytes, loaded.len) : -ENOMEM;
	store_reader_close(r);
	if (got != (ssize_t)loaded.len)
		return store_failed(why, got < 0 ? got : -EBADMSG);
	return comm_expect(loaded.bytes, loaded.len, why);
}

int comms_restore(struct sv_session *s, struct why *why)
{
	int rc = loaded.bytes ? comm_rebuild(s, loaded.bytes, loaded.len, why) : 0;

	free(loaded.bytes);
	loaded.bytes = NULL;
	return rc;
}
