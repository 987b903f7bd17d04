// SPDX-License-Identifier: Apache-2.0
/*
 * wire.c - sends and receives messages with checksums
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include "store_wire.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct head {
	uint32_t type, len;
	uint64_t check;		/* of the body */
	uint64_t head_check;	/* of the words above, so that a damaged length is found at once */
};
#pragma GCC diagnostic pop
_Static_assert(sizeof(struct head) == 24, "wire");

#define WHY_WAIT_MS 1000	/* for a FAILED of a side that reads no more */

static uint64_t check_of(uint32_t type, const void *a, size_t na, const void *b, size_t nb)
{
	XXH3_state_t *x;
	uint64_t v;

	if (!nb)
		return XXH3_64bits_withSeed(a, na, type);
	x = XXH3_createState();
	if (!x)
		abort();
	XXH3_64bits_reset_withSeed(x, type);
	XXH3_64bits_update(x, a, na);
	XXH3_64bits_update(x, b, nb);
	v = XXH3_64bits_digest(x);
	XXH3_freeState(x);
	return v;
}

static int read_all(struct wire *w, void *to, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = read(w->in, (char *)to + at, len - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return why_set(&w->why, -errno, "reading from %s: %s", w->who, strerror(errno));
		if (!n)
			return why_set(&w->why, -ECONNRESET, "%s has ended, or the connection to it",
				       w->who);
		at += n;
	}
	w->received += len;
	return 0;
}

static int write_all(struct wire *w, struct iovec *v, int n)
{
	while (n) {
		ssize_t did = writev(w->out, v, n);

		if (did < 0 && errno == EINTR)
			continue;
		if (did < 0)
			return -errno;
		w->sent += did;
		for (; n && (size_t)did >= v->iov_len; v++, n--)
			did -= v->iov_len;
		if (n) {
			v->iov_base = (char *)v->iov_base + did;
			v->iov_len -= did;
		}
	}
	return 0;
}

/* The other side reads no more: looks for a FAILED that it sent before. */
static int gone(struct wire *w, int err)
{
	uint32_t type;

	struct pollfd p = { .fd = w->in, .events = POLLIN };

	if (err == -EPIPE || err == -ECONNRESET)
		while (poll(&p, 1, WHY_WAIT_MS) > 0 && wire_any(w, &type) >= 0)
			;
	return why_set(&w->why, err, "writing to %s: %s", w->who, strerror(-err));
}

int wire_send(struct wire *w, uint32_t type, const void *a, size_t na, const void *b, size_t nb)
{
	struct head h = { type, na + nb, check_of(type, a, na, b, nb), 0 };
	struct iovec v[3] = {
		{ &h, sizeof(h) }, { (void *)a, na }, { (void *)b, nb },
	};
	int err;

	h.head_check = XXH3_64bits(&h, offsetof(struct head, head_check));
	err = na + nb > WIRE_MOST ? -EMSGSIZE : write_all(w, v, 3);
	return err ? gone(w, err) : 0;
}

/* FAILED: takes over the other side's sentence. */
static int other_failed(struct wire *w, size_t len)
{
	const struct wire_failed *f = (const void *)w->buf;

	if (len < sizeof(*f) || f->pad)
		return why_set(&w->why, -EPROTO, "%s has failed and does not say why", w->who);
	return why_set(&w->why, -EREMOTEIO, "%s: %s", w->who, (const char *)(f + 1));
}

ssize_t wire_any(struct wire *w, uint32_t *type)
{
	struct head h;
	int err = read_all(w, &h, sizeof(h));

	if (err)
		return err;
	if (h.head_check != XXH3_64bits(&h, offsetof(struct head, head_check)) ||
	    h.type < WIRE_HELLO || h.type > WIRE_FAILED || h.len > WIRE_MOST)
		return why_set(&w->why, -EPROTO, "what came from %s is no message of `singvgpu store`",
			       w->who);
	if (h.len >= w->room) {
		void *more = realloc(w->buf, h.len + 1);

		if (!more)
			return why_set(&w->why, -ENOMEM, "out of memory");
		w->buf = more;
		w->room = h.len + 1;
	}
	err = read_all(w, w->buf, h.len);
	if (err)
		return err;
	w->buf[h.len] = 0;
	if (check_of(h.type, w->buf, h.len, NULL, 0) != h.check)
		return why_set(&w->why, -EBADMSG, "what came from %s was changed on its way", w->who);
	if (h.type == WIRE_FAILED)
		return other_failed(w, h.len);
	*type = h.type;
	return h.len;
}

ssize_t wire_receive(struct wire *w, uint32_t type)
{
	uint32_t got;
	ssize_t len = wire_any(w, &got);

	if (len >= 0 && got != type)
		return why_set(&w->why, -EPROTO, "%s sent message %u where %u was due", w->who, got, type);
	return len;
}

void wire_fail(struct wire *w)
{
	struct wire_failed f = { .err = w->why.err ?: -EIO };

	if (f.err != -EREMOTEIO && f.err != -ECONNRESET)
		wire_send(w, WIRE_FAILED, &f, sizeof(f), w->why.text, strlen(w->why.text));
}

void wire_free(struct wire *w)
{
	free(w->buf);
	w->buf = NULL;
	w->room = 0;
}
