// SPDX-License-Identifier: Apache-2.0
/*
 * journal.c - what of the channel's log is still needed, when it is full
 *
 * Streams, events and arrays that have come and gone since leave both their records behind; those
 * are dropped. What is still live keeps all its records, in their order.
 */
#include <stdlib.h>

#include "uproxy_i.h"

/* ------------------------------------------------------------------------------ failures */

static uint64_t *failed;	/* numbers of records */
static size_t nfailed, failed_cap;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void journal_failed(uint64_t seq)
{
	pthread_mutex_lock(&lock);
	if (nfailed == failed_cap) {
		size_t n = failed_cap ? failed_cap * 2 : 64;
		uint64_t *f = realloc(failed, n * sizeof(*f));

		/* Without room it will fail again in a restore, which is refused then. */
		if (!f) {
			pthread_mutex_unlock(&lock);
			return;
		}
		failed = f;
		failed_cap = n;
	}
	failed[nfailed++] = seq;
	pthread_mutex_unlock(&lock);
}

uint64_t journal_seq(const struct singvgpu_log_entry *e)
{
	uint64_t len = e->len + sizeof(struct singvgpu_rec);

	return e->end + 1 - (len + SINGVGPU_UNIT - 1) / SINGVGPU_UNIT;
}

struct count {
	uint64_t kept, dropped;
};

/* The handle that a record made or ended, or 0. */
static uint64_t subject(const struct singvgpu_log_entry *e, const void *data, unsigned int *type)
{
	const struct sv_op *op = e->op < cuda_ops_count ? &cuda_ops[e->op] : NULL;
	uint64_t handle = 0;

	if (e->op == SV_OP_cuStreamDestroy_v2 && e->len == sizeof(struct sv_stream_end)) {
		*type = SV_T_CUstream;
		return ((const struct sv_stream_end *)data)->stream;
	}
	if (!op || !op->handle || op->handle - 1u + sizeof(handle) > e->len)
		return 0;
	*type = op->creates ? op->creates : op->destroys;
	memcpy(&handle, (const uint8_t *)data + op->handle - 1, sizeof(handle));
	return *type ? handle : 0;
}

static int keep(void *arg, const struct singvgpu_log_entry *e, const void *data)
{
	struct count *n = arg;
	unsigned int type = 0;
	uint64_t handle = subject(e, data, &type);
	int is = !handle || !sv_is_handle(type, handle) || handle_live(type, handle);

	if (is)
		n->kept++;
	else
		n->dropped++;
	return is;
}

int journal_compact(struct sv_session *s)
{
	struct count n = { 0 };
	size_t before = ring_log_bytes(s->ring);
	int rc = ring_log_compact(s->ring, keep, &n);

	if (log_verbose())
		say("the log was full: %llu records kept, %llu dropped",
		    (unsigned long long)n.kept, (unsigned long long)n.dropped);
	/* Where it brings little it would be done again and again. */
	if (!rc && ring_log_bytes(s->ring) > before / 8 * 7)
		rc = -ENOSPC;
	return rc;
}

/* The handle that the record makes or ends; else its number. */
static uint64_t key_of(const struct ring_record *rec)
{
	const struct sv_op *op = rec->op < cuda_ops_count ? &cuda_ops[rec->op] : NULL;
	uint64_t key = rec->seq;

	if (op && op->handle && op->handle - 1u + sizeof(key) <= rec->len)
		memcpy(&key, (const uint8_t *)rec->data + op->handle - 1, sizeof(key));
	return key;
}

int journal_add(struct sv_session *s, const struct ring_record *rec)
{
	uint64_t key = key_of(rec);
	int rc;

	rc = ring_log_append(s->ring, rec, rec->op, key, rec->data, rec->len);
	if (rc == -ENOSPC && !journal_compact(s))
		rc = ring_log_append(s->ring, rec, rec->op, key, rec->data, rec->len);
	return rc;
}
