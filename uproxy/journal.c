// SPDX-License-Identifier: Apache-2.0
/*
 * journal.c - what of the channel's log is still needed, when it is full
 *
 * Streams, events and arrays that have come and gone since leave both their records behind; those
 * are dropped. What is still live keeps all its records, in their order.
 */
#include "uproxy_i.h"

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

static int compact(struct sv_session *s)
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
	if (rc == -ENOSPC && !compact(s))
		rc = ring_log_append(s->ring, rec, rec->op, key, rec->data, rec->len);
	return rc;
}
