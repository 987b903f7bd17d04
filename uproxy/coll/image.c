// SPDX-License-Identifier: Apache-2.0
/*
 * image.c - writes the state of the step as an image, checks an image, and makes a state of it
 *
 * A checkpoint may be anybody's. check() accepts what a step can have reached, and nothing else: after it no index is
 * out of range, no operation waits for what cannot come, and build() cannot fail. explore.c shows that each state that
 * the step reaches passes; fuzz_board.c that what passes runs to its end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"
#include "step_i.h"
#include "tree.h"

/* An image's parts. */
struct view {
	const struct image_head *h;
	const struct image_proxy *proxy;
	const struct image_device *device;
	const struct image_comm *comm;
	const struct image_member *member;
	const struct image_op *op;
	const struct image_part *part;
	const struct image_record *record;
};

static size_t size_of(const struct image_head *h)
{
	return sizeof(*h) + h->proxies * sizeof(struct image_proxy) + h->devices * sizeof(struct image_device) +
	       h->comms * sizeof(struct image_comm) + h->members * sizeof(struct image_member) +
	       h->ops * sizeof(struct image_op) + h->parts * sizeof(struct image_part) +
	       h->records * sizeof(struct image_record);
}

static void lay_view(struct view *v, const void *image)
{
	v->h = image;
	v->proxy = (const void *)(v->h + 1);
	v->device = (const void *)(v->proxy + v->h->proxies);
	v->comm = (const void *)(v->device + v->h->devices);
	v->member = (const void *)(v->comm + v->h->comms);
	v->op = (const void *)(v->member + v->h->members);
	v->part = (const void *)(v->op + v->h->ops);
	v->record = (const void *)(v->part + v->h->parts);
}

/* ---- writing ---- */

static void save_comm(const struct step *s, uint32_t i, uint32_t n, struct view *to, struct image_head *h,
                      const uint32_t *record)
{
	const struct comm *c = comm_at(s, i);

	((struct image_comm *)to->comm)[n] =
		(struct image_comm){ .key = c->key, .ranks = c->ranks, .joined = c->joined,
			             .first = c->first, .state = c->state, .code = c->code };
	for (uint32_t r = 0; r < c->ranks; r++) {
		const struct member *m = member_at(s, c->first + r);
		struct image_member *w = (struct image_member *)&to->member[h->members++];

		*w = (struct image_member){ .posted = m->posted, .proxy = m->proxy, .joined = m->joined,
			                    .state = m->used };
	}
	for (uint32_t o = c->ops; o; o = op_at(s, o - 1)->next) {
		const struct op *op = op_at(s, o - 1);
		struct image_op *w = (struct image_op *)&to->op[h->ops++];

		*w = (struct image_op){ .number = op->number, .order = op->order, .born = op->born,
			                .count = op->call.count, .comm = n, .peer = op->call.peer,
			                .kind = op->call.kind, .type = op->call.type, .op = op->call.op,
			                .code = op->code };
		for (uint32_t p = op->parts; p; p = part_at(s, p - 1)->next, w->parts++) {
			const struct part *part = part_at(s, p - 1);

			((struct image_part *)to->part)[h->parts++] =
				(struct image_part){ .cookie = part->cookie, .member = part->member,
					             .proxy = part->proxy, .device = part->device,
					             .call = part->call, .state = part->used,
					             .begun = part->begun,
					             .record = part->told ? STEP_NONE : record[part->record] };
		}
	}
}

/* A device that has had a proxy, as far as that still matters. */
static bool is_known(const struct device *d)
{
	return d->proxies || d->parts || d->seen;
}

int step_save(const struct step *s, void **image, size_t *len)
{
	struct image_head h = { .magic = IMAGE_MAGIC, .version = IMAGE_VERSION, .proxies = s->used[PROXIES],
		                .comms = s->used[COMMS], .members = s->used[MEMBERS], .ops = s->used[OPS],
		                .parts = s->used[PARTS], .records = s->used[RECORDS], .orders = s->orders,
		                .births = s->births };
	uint32_t *record = calloc(s->limit[RECORDS], sizeof(*record)), n = 0;
	struct view v;
	void *to;

	for (uint32_t i = 0; i < s->limit[DEVICES]; i++)
		h.devices += is_known(device_at(s, i));
	h.size = size_of(&h);
	to = calloc(1, h.size);
	if (!to || !record) {
		free(to);
		free(record);
		return -ENOMEM;
	}
	memcpy(to, &h, sizeof(h));
	lay_view(&v, to);
	for (uint32_t i = 0; i < s->limit[PROXIES]; i++)
		if (is_used(s, PROXIES, i))
			((struct image_proxy *)v.proxy)[n++] = (struct image_proxy){
				.proxy = i, .device = proxy_at(s, i)->device, .state = proxy_at(s, i)->state };
	n = 0;
	for (uint32_t i = 0; i < s->limit[DEVICES]; i++) {
		const struct device *d = device_at(s, i);

		if (is_known(d))
			((struct image_device *)v.device)[n++] = (struct image_device){
				.device = i, .seen = d->seen, .woken = d->woken };
	}
	n = 0;
	for (uint32_t i = 0; i < s->limit[RECORDS]; i++) {
		const struct record *r = record_at(s, i);

		record[i] = n;
		if (is_used(s, RECORDS, i))
			((struct image_record *)v.record)[n++] = (struct image_record){
				.cookie = r->cookie, .member = r->member, .code = r->code };
	}
	h.members = h.ops = h.parts = n = 0;
	for (uint32_t i = 0; i < s->limit[COMMS]; i++)
		if (is_used(s, COMMS, i))
			save_comm(s, i, n++, &v, &h, record);
	free(record);
	*image = to;
	*len = h.size;
	return 0;
}

/* ---- checking ---- */

/* What is computed of an image while it is checked; indexed as the step's arrays are. */
struct facts {
	struct view v;
	uint32_t *proxy, *device; /* place in the image + 1; 0: there is none */
	uint32_t *member; /* place in the image + 1 */
	uint32_t *alive; /* of a device: its proxies that have not died */
	uint32_t *on_device, *of_proxy; /* parts that have not ended */
	uint32_t *stamp; /* of a proxy, then of a member: the last that named it */
	uint32_t *left; /* of a record, by place: parts that have not been told */
	uint32_t *base; /* of a communicator: the first of its members */
	uint32_t *gone; /* of a communicator: members that are not IN */
	uint64_t *posted; /* of each communicator its members' counts, ascending */
	uint64_t *least; /* of a communicator: of its members that are IN; UINT64_MAX: there are none */
	uint64_t *orders; /* of operations that are in the log */
	uint32_t n_orders;
	const char *why;
};

static bool refuse(struct facts *f, const char *why)
{
	f->why = why;
	return false;
}

static bool is_zero(const void *p, size_t n)
{
	const uint8_t *b = p;

	while (n && !*b) {
		b++;
		n--;
	}
	return !n;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static bool check_proxies(struct facts *f, const struct step *s)
{
	const struct view *v = &f->v;

	for (uint32_t i = 0; i < v->h->devices; i++) {
		const struct image_device *d = &v->device[i];

		if (d->device >= s->limit[DEVICES] || d->zero || (i && d->device <= d[-1].device))
			return refuse(f, "a device's number");
		if (d->seen > v->h->orders || d->woken > v->h->orders)
			return refuse(f, "how far a device is");
		f->device[d->device] = i + 1;
	}
	for (uint32_t i = 0; i < v->h->proxies; i++) {
		const struct image_proxy *p = &v->proxy[i];

		if (p->proxy >= s->limit[PROXIES] || (i && p->proxy <= p[-1].proxy) ||
		    !is_zero(p->zero, sizeof(p->zero)))
			return refuse(f, "a seat's number");
		if (p->state < LIVES || p->state > DIED)
			return refuse(f, "a seat's state");
		if (p->device >= s->limit[DEVICES])
			return refuse(f, "a seat's device");
		f->proxy[p->proxy] = i + 1;
		f->alive[p->device] += p->state != DIED;
	}
	return true;
}

/* The image's entry of a proxy that the step knows, or NULL. */
static const struct image_proxy *proxy_of(const struct facts *f, const struct step *s, uint32_t i)
{
	return i < s->limit[PROXIES] && f->proxy[i] ? &f->v.proxy[f->proxy[i] - 1] : NULL;
}

static bool check_member(struct facts *f, const struct step *s, uint32_t comm, const struct image_member *m)
{
	const struct image_comm *c = &f->v.comm[comm];
	const struct image_proxy *p = proxy_of(f, s, m->proxy);

	if (!is_zero(m->zero, sizeof(m->zero)))
		return refuse(f, "a member's padding");
	if (m->state == RESERVED)
		return c->state != STANDING && !m->proxy && !m->joined && !m->posted ? true :
		       refuse(f, "a member that has not joined");
	if (m->joined >= s->limit[PROXIES] || f->stamp[m->joined] == comm + 1)
		return refuse(f, "the seat of a member");
	f->stamp[m->joined] = comm + 1;
	if (m->proxy != STEP_NONE && (m->proxy != m->joined || !p))
		return refuse(f, "the seat of a member");
	switch (m->state) {
	case IN:
		if (c->state == NEVER || !p || p->state != LIVES)
			break;
		return c->state == STANDING || !m->posted ? true : refuse(f, "what a member has posted");
	case GONE:
		if (c->state == FORMING)
			break;
		return c->state == STANDING || !m->posted ? true : refuse(f, "what a member has posted");
	case DEAD:
		if (c->state != STANDING || (p && p->state == LIVES))
			break;
		return true;
	}
	return refuse(f, "a member's state");
}

static bool check_comm(struct facts *f, const struct step *s, uint32_t i, uint32_t at)
{
	const struct image_comm *c = &f->v.comm[i];
	uint32_t in = 0, reserved = 0;

	if (!is_zero(c->zero, sizeof(c->zero)) || c->state < FORMING || c->state > NEVER ||
	    (c->state == NEVER ? c->code != STEP_REMOTE && c->code != STEP_INVALID_USAGE : c->code))
		return refuse(f, "a communicator's state");
	if (!c->ranks || c->ranks > f->v.h->members - at || c->first >= s->limit[MEMBERS] ||
	    c->ranks > s->limit[MEMBERS] - c->first)
		return refuse(f, "a communicator's ranks");
	f->base[i] = at;
	f->least[i] = UINT64_MAX;
	for (uint32_t r = 0; r < c->ranks; r++) {
		const struct image_member *m = &f->v.member[at + r];

		if (f->member[c->first + r])
			return refuse(f, "two communicators with one member");
		f->member[c->first + r] = at + r + 1;
		if (!check_member(f, s, i, m))
			return false;
		in += m->state == IN;
		reserved += m->state == RESERVED;
		f->posted[at + r] = m->posted;
		if (m->state == IN && m->posted < f->least[i])
			f->least[i] = m->posted;
	}
	f->gone[i] = c->ranks - in;
	qsort(f->posted + at, c->ranks, sizeof(*f->posted), by_number);
	if (c->state == STANDING ? c->joined != c->ranks :
	    c->state == FORMING  ? c->joined != in || !in || in == c->ranks :
	                           c->joined < c->ranks - reserved || c->joined >= c->ranks || !c->joined)
		return refuse(f, "how many have joined a communicator");
	return true;
}

static bool check_comms(struct facts *f, const struct step *s)
{
	uint64_t *key = malloc((f->v.h->comms + 1) * sizeof(*key));
	uint32_t at = 0, i;

	if (!key)
		return refuse(f, NULL);
	for (i = 0; i < f->v.h->comms && check_comm(f, s, i, at); i++) {
		at += f->v.comm[i].ranks;
		key[i] = f->v.comm[i].key;
	}
	qsort(key, i, sizeof(*key), by_number);
	for (uint32_t k = 1; k < i && !f->why; k++)
		if (key[k] == key[k - 1])
			refuse(f, "two communicators with one key");
	free(key);
	if (!f->why && at != f->v.h->members)
		refuse(f, "members of no communicator");
	return !f->why;
}

/* How many of a communicator's members have posted more than `number` collectives. */
static uint32_t posters(const struct facts *f, uint32_t comm, uint64_t number)
{
	const uint64_t *posted = f->posted + f->base[comm];
	uint32_t low = 0, high = f->v.comm[comm].ranks;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (posted[mid] > number)
			high = mid;
		else
			low = mid + 1;
	}
	return f->v.comm[comm].ranks - low;
}

static bool is_whole(const struct facts *f, const struct image_op *op)
{
	return op->parts == (op->kind >= STEP_SEND ? 2 : f->v.comm[op->comm].ranks);
}

/* A send of this size ends before its receiver is there. */
static bool is_small(const struct image_op *op)
{
	return op->kind == STEP_SEND && op->count <= STEP_BUFFERED / tree_leaf_size(op->type);
}

static bool check_record(struct facts *f, const struct image_part *p)
{
	const struct image_record *r;

	if (p->record == STEP_NONE)
		return p->begun ? true : refuse(f, "a part that has ended and not begun");
	if (p->record >= f->v.h->records || p->state == ENDED)
		return refuse(f, "the record of a part");
	r = &f->v.record[p->record];
	if (r->member != p->member || r->cookie != p->cookie)
		return refuse(f, "the record of a part");
	f->left[p->record]++;
	return true;
}

/* Whether a part is where its operation and its device say. */
static bool check_stage(struct facts *f, const struct step *s, const struct image_op *op, const struct image_part *p)
{
	const struct image_device *d = p->device < s->limit[DEVICES] && f->device[p->device] ?
	                               &f->v.device[f->device[p->device] - 1] : NULL;
	const struct image_proxy *proxy = proxy_of(f, s, p->proxy);
	uint8_t member = f->v.member[f->member[p->member] - 1].state;
	bool told = p->record == STEP_NONE;

	if (p->state < WAITS || p->state > ENDED || p->begun > 1 || !is_zero(p->zero, sizeof(p->zero)) ||
	    p->device >= s->limit[DEVICES])
		return refuse(f, "the state of a part");
	if (p->state == ENDED)
		return told && (op->code || (d && op->order && op->order <= d->seen)) ? true :
		       refuse(f, "a part that has ended");
	if (!d || !proxy || proxy->device != p->device)
		return refuse(f, "the device of a part");
	f->on_device[p->device]++;
	f->of_proxy[p->proxy]++;
	if (p->state == WAITS ? op->code || p->begun != told || (op->order && (op->order <= d->seen ||
	                                                                      op->order > d->woken)) :
	                        !p->begun || !op->order || op->order > d->seen || (p->state == HALTED && !op->code))
		return refuse(f, "the state of a part");
	if (p->state == STARTED && !f->alive[p->device])
		return refuse(f, "a part that nobody would end");
	if (told && !is_small(op))
		return refuse(f, "a part that has ended for its record");
	/* Who goes fails what it has not ended; what it has sent into a buffer stays, unless it dies. */
	if (!op->code && member != IN && (!told || member == DEAD))
		return refuse(f, "a part of a rank that is gone");
	return true;
}

static bool check_part(struct facts *f, const struct step *s, uint32_t o, uint32_t at, uint32_t i)
{
	const struct image_op *op = &f->v.op[o];
	const struct image_comm *c = &f->v.comm[op->comm];
	const struct image_part *p = &f->v.part[at + i];
	const struct image_member *m;
	bool sender = op->kind == STEP_SEND;

	if (p->member < c->first || p->member - c->first >= c->ranks)
		return refuse(f, "the member of a part");
	m = &f->v.member[f->member[p->member] - 1];
	if (p->proxy != m->joined)
		return refuse(f, "the seat of a part");
	if (op->kind >= STEP_SEND) {
		/* The first one posted the call that the operation has. The other is at its other end. */
		if (i && p->member - c->first != op->peer)
			return refuse(f, "the member of a part");
		if (p->state != ENDED && (p->record == STEP_NONE) != (sender && !i && is_small(op)))
			return refuse(f, "a part that has ended for its record");
	} else {
		if (m->posted <= op->number || f->stamp[p->member] == o + 1)
			return refuse(f, "the member of a part");
		f->stamp[p->member] = o + 1;
	}
	return check_stage(f, s, op, p) && check_record(f, p);
}

/* What has not ended, and whether it may still end. */
static bool check_open(struct facts *f, const struct image_op *op, uint32_t at)
{
	bool pair = op->kind >= STEP_SEND, whole = is_whole(f, op);
	uint32_t open = 0, started = 0, halted = 0;

	for (uint32_t i = 0; i < op->parts; i++) {
		open += f->v.part[at + i].state != ENDED;
		started += f->v.part[at + i].state == STARTED;
		halted += f->v.part[at + i].state == HALTED;
	}
	if (halted && !started)
		return refuse(f, "an operation that has stopped everywhere");
	if (op->code)
		return open || (!pair && f->least[op->comm] <= op->number) ? true :
		       refuse(f, "an operation that has ended");
	if (!open || whole != !!op->order)
		return refuse(f, whole ? "an operation that all have posted" : "an operation in the log too early");
	if (whole || pair)
		return true;
	return f->gone[op->comm] ? refuse(f, "an operation that cannot come about") : true;
}

static bool check_op(struct facts *f, const struct step *s, uint32_t i, uint32_t at)
{
	const struct image_op *op = &f->v.op[i];
	bool pair = op->kind >= STEP_SEND;
	const struct image_comm *c;

	if (op->comm >= f->v.h->comms || (i && op->comm < op[-1].comm))
		return refuse(f, "the communicator of an operation");
	c = &f->v.comm[op->comm];
	if (c->state != STANDING || op->kind >= STEP_KINDS || op->type >= TREE_TYPES || op->op >= TREE_OPS ||
	    op->peer >= c->ranks || !op->count)
		return refuse(f, "the call of an operation");
	if (op->code && op->code != STEP_SYSTEM && op->code != STEP_INVALID_USAGE && op->code != STEP_REMOTE)
		return refuse(f, "the end of an operation");
	if (!op->born || op->born > f->v.h->births || op->order > f->v.h->orders)
		return refuse(f, "the place of an operation");
	if (!op->parts || op->parts > (pair ? 2 : c->ranks) || op->parts > f->v.h->parts - at)
		return refuse(f, "how many have posted an operation");
	if (pair ? op->number : posters(f, op->comm, op->number) != op->parts)
		return refuse(f, "who has posted an operation");
	if (op->order) {
		if (!is_whole(f, op))
			return refuse(f, "an operation in the log too early");
		f->orders[f->n_orders++] = op->order;
	}
	for (uint32_t k = 0; k < op->parts; k++)
		if (!check_part(f, s, i, at, k))
			return false;
	return check_open(f, op, at);
}

/* Of each communicator: collectives ascend, and each that a member may still post is there. */
static bool check_numbers(struct facts *f)
{
	uint32_t o = 0;

	for (uint32_t i = 0; i < f->v.h->comms; i++) {
		uint64_t last = 0, least = f->least[i], most = f->posted[f->base[i] + f->v.comm[i].ranks - 1], n = 0;
		bool any = false;

		for (; o < f->v.h->ops && f->v.op[o].comm == i; o++) {
			const struct image_op *op = &f->v.op[o];

			if (op->kind >= STEP_SEND)
				continue;
			if (any && op->number <= last)
				return refuse(f, "the order of collectives");
			any = true;
			last = op->number;
			n += op->number >= least;
		}
		if (f->v.comm[i].state == STANDING && least < most && n != most - least)
			return refuse(f, "a collective that is not there");
		if (f->v.comm[i].state == STANDING && f->gone[i] == f->v.comm[i].ranks &&
		    !(o && f->v.op[o - 1].comm == i))
			return refuse(f, "a communicator that all have left");
	}
	return true;
}

struct pair {
	uint32_t comm, source, destination, at;
	uint8_t sides;
};

static int by_ends(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;

	if (x->comm != y->comm)
		return x->comm < y->comm ? -1 : 1;
	if (x->source != y->source)
		return x->source < y->source ? -1 : 1;
	if (x->destination != y->destination)
		return x->destination < y->destination ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

/* Between two ranks the k-th send meets the k-th receive: only sends wait there, or only receives. */
static bool check_pairs(struct facts *f)
{
	struct pair *pair = malloc((f->v.h->ops + 1) * sizeof(*pair));
	uint32_t n = 0, part = 0;

	if (!pair)
		return refuse(f, NULL);
	for (uint32_t i = 0; i < f->v.h->ops; part += f->v.op[i++].parts) {
		const struct image_op *op = &f->v.op[i];
		uint32_t rank = f->v.part[part].member - f->v.comm[op->comm].first;
		bool sends = op->kind == STEP_SEND;

		if (op->kind < STEP_SEND)
			continue;
		pair[n++] = (struct pair){ op->comm, sends ? rank : op->peer, sends ? op->peer : rank, i,
			                   op->parts == 2 ? SENDER | RECEIVER : sends ? SENDER : RECEIVER };
	}
	qsort(pair, n, sizeof(*pair), by_ends);
	for (uint32_t i = 1; i < n && !f->why; i++)
		if (pair[i].comm == pair[i - 1].comm && pair[i].source == pair[i - 1].source &&
		    pair[i].destination == pair[i - 1].destination &&
		    pair[i - 1].sides != (SENDER | RECEIVER) && pair[i].sides != pair[i - 1].sides)
			refuse(f, "the order of sends");
	/* One that waits alone waits for a rank that can still come. */
	for (uint32_t i = 0; i < n && !f->why; i++) {
		const struct image_comm *c = &f->v.comm[pair[i].comm];
		uint32_t other = pair[i].sides == SENDER ? pair[i].destination : pair[i].source;

		if (pair[i].sides == (SENDER | RECEIVER))
			continue;
		for (uint32_t r = 0; f->gone[pair[i].comm] && r < c->ranks; r++) {
			uint8_t state = f->v.member[f->base[pair[i].comm] + r].state;

			if (state == DEAD || (state == GONE && r == other))
				refuse(f, "a pair that cannot come about");
		}
	}
	free(pair);
	return !f->why;
}

static bool check_ops(struct facts *f, const struct step *s)
{
	uint32_t at = 0;

	memset(f->stamp, 0, (s->limit[PROXIES] + s->limit[MEMBERS]) * sizeof(*f->stamp));
	for (uint32_t i = 0; i < f->v.h->ops; i++) {
		if (!check_op(f, s, i, at))
			return false;
		at += f->v.op[i].parts;
	}
	if (at != f->v.h->parts)
		return refuse(f, "parts of no operation");
	qsort(f->orders, f->n_orders, sizeof(*f->orders), by_number);
	for (uint32_t i = 1; i < f->n_orders; i++)
		if (f->orders[i] == f->orders[i - 1])
			return refuse(f, "two operations with one place in the log");
	return check_numbers(f) && check_pairs(f);
}

static bool check_ends(struct facts *f)
{
	const struct view *v = &f->v;

	for (uint32_t i = 0; i < v->h->records; i++)
		if (!is_zero(v->record[i].zero, sizeof(v->record[i].zero)) || !f->left[i])
			return refuse(f, "a record of no part");
	/* Who has left stays only as long as it is needed. */
	for (uint32_t i = 0; i < v->h->proxies; i++) {
		const struct image_proxy *p = &v->proxy[i];

		if (p->state == LIVES ? !f->device[p->device] : !f->of_proxy[p->proxy] &&
		    (p->state == DIED || !f->on_device[p->device]))
			return refuse(f, "a seat that nobody needs");
	}
	return true;
}

static bool check_head(struct facts *f, const struct step *s)
{
	const struct image_head *h = f->v.h;

	if (h->zero)
		return refuse(f, "the head's padding");
	if (h->proxies > s->limit[PROXIES] || h->devices > s->limit[DEVICES] || h->comms > s->limit[COMMS] ||
	    h->members > s->limit[MEMBERS] || h->ops > s->limit[OPS] || h->parts > s->limit[PARTS] ||
	    h->records > s->limit[RECORDS])
		return refuse(f, "more than a board has room for");
	return true;
}

static bool have(uint32_t **p, size_t n)
{
	*p = calloc(n + 1, sizeof(**p));
	return *p;
}

static bool have_numbers(uint64_t **p, size_t n)
{
	*p = calloc(n + 1, sizeof(**p));
	return *p;
}

static void facts_end(struct facts *f)
{
	free(f->proxy);
	free(f->device);
	free(f->member);
	free(f->alive);
	free(f->on_device);
	free(f->of_proxy);
	free(f->stamp);
	free(f->left);
	free(f->base);
	free(f->gone);
	free(f->posted);
	free(f->least);
	free(f->orders);
}

static bool facts_begin(struct facts *f, const struct step *s)
{
	const struct image_head *h = f->v.h;
	bool all = have(&f->proxy, s->limit[PROXIES]);

	all &= have(&f->device, s->limit[DEVICES]);
	all &= have(&f->member, s->limit[MEMBERS]);
	all &= have(&f->alive, s->limit[DEVICES]);
	all &= have(&f->on_device, s->limit[DEVICES]);
	all &= have(&f->of_proxy, s->limit[PROXIES]);
	all &= have(&f->stamp, (size_t)s->limit[PROXIES] + s->limit[MEMBERS]);
	all &= have(&f->left, h->records);
	all &= have(&f->base, h->comms);
	all &= have(&f->gone, h->comms);
	all &= have_numbers(&f->posted, h->members);
	all &= have_numbers(&f->least, h->comms);
	all &= have_numbers(&f->orders, h->ops);
	return all;
}

/* ---- making a state ---- */

static void build_comm(struct step *s, const struct facts *f, uint32_t i)
{
	const struct image_comm *c = &f->v.comm[i];
	struct comm *to = comm_at(s, step_take(s, COMMS));

	*to = (struct comm){ .used = 1, .state = c->state, .code = c->code, .ranks = c->ranks,
		             .joined = c->joined, .first = c->first, .key = c->key };
	for (uint32_t r = 0; r < c->ranks; r++) {
		const struct image_member *m = &f->v.member[f->base[i] + r];
		const struct image_proxy *p = m->state == RESERVED || m->proxy == STEP_NONE ?
			NULL : &f->v.proxy[f->proxy[m->proxy] - 1];

		step_mark(s, MEMBERS, c->first + r, true);
		*member_at(s, c->first + r) = (struct member){
			.used = m->state, .comm = i, .proxy = m->proxy, .joined = m->joined, .posted = m->posted,
			.silent = m->state != RESERVED && (!p || p->state != LIVES),
		};
		to->gone += c->state == STANDING && (m->state == GONE || m->state == DEAD);
		to->died |= m->state == DEAD;
	}
}

static void build_part(struct step *s, const struct image_part *p, uint32_t op)
{
	uint32_t i = step_take(s, PARTS);
	bool told = p->record == STEP_NONE;

	*part_at(s, i) = (struct part){ .used = p->state, .told = told, .begun = p->begun, .member = p->member,
		                        .proxy = p->proxy, .device = p->device, .call = p->call,
		                        .record = told ? 0 : p->record, .cookie = p->cookie };
	step_add_part(s, op, i);
	if (p->state == ENDED)
		return;
	proxy_at(s, p->proxy)->parts++;
	device_at(s, p->device)->parts++;
	if (told)
		return;
	record_at(s, p->record)->left++;
	record_at(s, p->record)->parked += !p->begun;
}

static int by_order(const void *a, const void *b, void *state)
{
	const struct op *x = op_at(state, *(const uint32_t *)a), *y = op_at(state, *(const uint32_t *)b);

	return x->order < y->order ? -1 : x->order > y->order;
}

static void build_ops(struct step *s, const struct facts *f, uint32_t *logged)
{
	uint32_t at = 0, n = 0;

	for (uint32_t i = 0; i < f->v.h->ops; i++) {
		const struct image_op *from = &f->v.op[i];
		uint32_t rank = f->v.part[at].member - f->v.comm[from->comm].first;
		uint32_t o = step_take(s, OPS);
		struct op *op = op_at(s, o);

		*op = (struct op){ .used = 1, .code = from->code, .comm = from->comm, .first_rank = rank,
			           .number = from->number, .order = from->order, .born = from->born };
		op->call = (struct step_call){ .kind = from->kind, .type = from->type, .op = from->op,
			                       .peer = from->peer, .count = from->count };
		if (from->kind >= STEP_SEND) {
			bool sends = from->kind == STEP_SEND;

			op->is_pair = 1;
			op->source = sends ? rank : from->peer;
			op->destination = sends ? from->peer : rank;
			op->sides = from->parts == 2 ? SENDER | RECEIVER : sends ? SENDER : RECEIVER;
		}
		step_add_op(s, o);
		for (uint32_t k = 0; k < from->parts; k++)
			build_part(s, &f->v.part[at++], o);
		if (op->order)
			logged[n++] = o;
	}
	qsort_r(logged, n, sizeof(*logged), by_order, s);
	for (uint32_t i = 0; i < n; i++)
		step_add_to_log(s, logged[i]);
}

static void build(struct step *s, const struct facts *f, uint32_t *logged)
{
	const struct view *v = &f->v;

	s->orders = v->h->orders;
	s->births = v->h->births;
	for (uint32_t i = 0; i < v->h->devices; i++) {
		device_at(s, v->device[i].device)->seen = v->device[i].seen;
		device_at(s, v->device[i].device)->woken = v->device[i].woken;
	}
	for (uint32_t i = 0; i < v->h->proxies; i++) {
		const struct image_proxy *p = &v->proxy[i];

		step_mark(s, PROXIES, p->proxy, true);
		*proxy_at(s, p->proxy) = (struct proxy){ .state = p->state, .device = p->device };
		device_at(s, p->device)->proxies += p->state != DIED;
		device_at(s, p->device)->exited += p->state == EXITED;
	}
	for (uint32_t i = 0; i < v->h->comms; i++)
		build_comm(s, f, i);
	for (uint32_t i = 0; i < v->h->records; i++)
		*record_at(s, step_take(s, RECORDS)) = (struct record){
			.used = 1, .code = v->record[i].code, .member = v->record[i].member,
			.cookie = v->record[i].cookie };
	build_ops(s, f, logged);
	step_index(s);
}

static int load(struct step *s, const void *image, const char **why)
{
	struct facts f = { 0 };
	uint32_t *logged = NULL;
	int rc = 0;

	lay_view(&f.v, image);
	if (!facts_begin(&f, s) || !have(&logged, f.v.h->ops))
		rc = -ENOMEM;
	else if (!check_proxies(&f, s) || !check_comms(&f, s) || !check_ops(&f, s) || !check_ends(&f))
		rc = f.why ? -EBADMSG : -ENOMEM;
	if (!rc)
		build(s, &f, logged);
	*why = rc == -EBADMSG ? f.why : NULL;
	facts_end(&f);
	free(logged);
	return rc;
}

int step_load(struct step *s, const void *image, size_t len, const char **why)
{
	struct facts f = { 0 };
	struct image_head h;
	const char *none;
	void *new;
	size_t n;
	int rc;

	if (!why)
		why = &none;
	*why = "its head";
	if (len < sizeof(h))
		return -EBADMSG;
	memcpy(&h, image, sizeof(h));
	if (h.magic != IMAGE_MAGIC)
		return -EBADMSG;
	if (h.version == 1) {
		rc = image_from_1(image, len, &new, &n, why);
		if (rc)
			return rc;
		rc = step_load(s, new, n, why);
		free(new);
		return rc;
	}
	if (h.version != IMAGE_VERSION)
		return -EPROTONOSUPPORT;
	f.v.h = &h;
	if (!check_head(&f, s)) {
		*why = f.why;
		return -EBADMSG;
	}
	if (h.size != len || size_of(&h) != len)
		return -EBADMSG;
	return load(s, image, why);
}
