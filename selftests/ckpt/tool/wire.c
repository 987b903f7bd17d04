// SPDX-License-Identifier: Apache-2.0
/*
 * wire.c - `singvgpu store serve`, `push` and `pull` refuse messages that are well-formed but wrong
 *
 * Each case is a sender that follows store_wire.h up to one point. The server must name the error,
 * end, and leave an intact store with no new checkpoint. For `push` and `pull` this program is what
 * they start instead of ssh, and tells them one lie.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "store.h"
#include "store_wire.h"

static char dir[] = "/tmp/svwire.XXXXXX", path[64], full[64], tool[512];
static struct store *store;	/* for digests */
static int point, failed;

static void ok(bool good, const char *what, const char *detail)
{
	printf("%sok %d - %s\n", good ? "" : "not ", ++point, what);
	if (!good)
		printf("#   %s\n", detail);
	failed |= !good;
}

/* ---------------------------------------------------------------------------- the server */

static pid_t serve(struct wire *w)
{
	int to[2], from[2];
	pid_t pid;

	if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
		exit(1);
	pid = fork();
	if (!pid) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		execl(tool, tool, "store", "serve", "--", path, NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	*w = (struct wire){ .in = from[0], .out = to[1], .who = "server" };
	return pid;
}

/* ------------------------------------------------------------------------------- pieces */

static int send(struct wire *w, uint32_t type, const void *data, size_t len)
{
	return wire_send(w, type, data, len, NULL, 0);
}

static int hello(struct wire *w, uint32_t version, bool pull)
{
	struct wire_hello h = { .magic = WIRE_MAGIC, .version = version, .pull = pull,
				.seed = store_seed(store) };
	int err = send(w, WIRE_HELLO, &h, sizeof(h));

	return err ?: wire_receive(w, WIRE_HELLO) < 0 ? -EPROTO : 0;
}

static int offer(struct wire *w, const char *id)
{
	struct wire_offer o = { .bytes = 1 };
	int err = hello(w, WIRE_VERSION, false);

	memcpy(o.id, id, strlen(id) < sizeof(o.id) ? strlen(id) : sizeof(o.id));
	if (!err)
		err = send(w, WIRE_OFFER, &o, sizeof(o));
	return err ?: wire_receive(w, WIRE_WANT) < 0 ? -EPROTO : 0;
}

static const char id[] = "0123456789abcdef0123456789abcdef";

static int object(struct wire *w, uint64_t size, const char *name)
{
	int err = offer(w, id);

	return err ?: wire_send(w, WIRE_OBJECT, &size, 8, name, strlen(name));
}

/* A message with any head. sealed: its words' own check is right. */
struct raw_head {
	uint32_t type, len;
	uint64_t check, head_check;
};

static int raw(struct wire *w, struct raw_head h, bool sealed, const void *body, size_t n)
{
	h.head_check = XXH3_64bits(&h, offsetof(struct raw_head, head_check)) ^ !sealed;
	return write(w->out, &h, sizeof(h)) == sizeof(h) && write(w->out, body, n) == (ssize_t)n ?
		       0 : -errno;
}

static const struct wire_hello good_hello = { .magic = WIRE_MAGIC, .version = WIRE_VERSION };

/* A HELLO that is right but for its type, length and checks. */
static int raw_hello(struct wire *w, uint32_t type, uint32_t len, int check, bool sealed)
{
	struct raw_head h = { type, len, 0, 0 };

	h.check = XXH3_64bits_withSeed(&good_hello, sizeof(good_hello), type) + check;
	return raw(w, h, sealed, &good_hello, sizeof(good_hello));
}

/* One batch of pages that nobody has, at off, in `runs` runs of `pages`. */
static int batch(struct wire *w, uint32_t runs, uint64_t pages, uint64_t off, uint64_t step,
		 uint32_t says)
{
	static struct {
		struct wire_digests head;
		struct wire_run run[2 * WIRE_BATCH];
	} b;
	static struct store_digest d[4 * WIRE_BATCH];
	static uint64_t serial;

	b.head = (struct wire_digests){ runs, says };
	for (uint32_t i = 0; i < runs; i++)
		b.run[i] = (struct wire_run){ off + i * step, pages };
	for (uint32_t i = 0; i < 4 * WIRE_BATCH; i++)
		d[i] = (struct store_digest){ ++serial, 7 };
	return wire_send(w, WIRE_DIGESTS, &b, sizeof(b.head) + runs * sizeof(b.run[0]), d,
			 (says < 4 * WIRE_BATCH ? says : 1) * sizeof(d[0]));
}

/* ------------------------------------------------------------------------------- cases */

#define MIB (1u << 20)

static int version(struct wire *w)
{
	return hello(w, WIRE_VERSION + 1, false);
}

static int padded_hello(struct wire *w)
{
	struct wire_hello h = { .magic = WIRE_MAGIC, .version = WIRE_VERSION, .pad = { 1, 0 } };

	return send(w, WIRE_HELLO, &h, sizeof(h));
}

static int padded_behind(struct wire *w)
{
	struct wire_hello h = { .magic = WIRE_MAGIC, .version = WIRE_VERSION, .pad = { 0, 1 } };

	return send(w, WIRE_HELLO, &h, sizeof(h));
}

static int other_magic(struct wire *w)
{
	struct wire_hello h = good_hello;

	h.magic[3]++;
	return send(w, WIRE_HELLO, &h, sizeof(h));
}

static int long_hello(struct wire *w)
{
	struct wire_hello h[2] = { good_hello };

	return send(w, WIRE_HELLO, h, sizeof(h));
}

static int damaged_head(struct wire *w)
{
	return raw_hello(w, WIRE_HELLO, sizeof(good_hello), 0, false);
}

static int damaged_body(struct wire *w)
{
	return raw_hello(w, WIRE_HELLO, sizeof(good_hello), 1, true);
}

static int type_zero(struct wire *w)
{
	return raw_hello(w, 0, sizeof(good_hello), 0, true);
}

static int type_too_high(struct wire *w)
{
	return raw_hello(w, WIRE_FAILED + 1, sizeof(good_hello), 0, true);
}

static int too_long(struct wire *w)
{
	return raw_hello(w, WIRE_HELLO, WIRE_MOST + 1, 0, true);
}

static int not_hello(struct wire *w)
{
	return send(w, WIRE_BYE, NULL, 0);
}

static int short_hello(struct wire *w)
{
	return send(w, WIRE_HELLO, WIRE_MAGIC, 16);
}

static int short_id(struct wire *w)
{
	return offer(w, "0123");
}

static int path_id(struct wire *w)
{
	return offer(w, "../../../../../../etc/passwd/xxx");
}

static int long_id(struct wire *w)
{
	return offer(w, "0123456789abcdef0123456789abcdef01234567");
}

static int longer_id(struct wire *w)
{
	return offer(w, "0123456789abcdef0123456789abcdefx");
}

static int long_offer(struct wire *w)
{
	char big[4096] = { 0 };

	return hello(w, WIRE_VERSION, false) ?: send(w, WIRE_OFFER, big, sizeof(big));
}

static int no_name(struct wire *w)
{
	return object(w, MIB, "");
}

static int name_with_nul(struct wire *w)
{
	uint64_t size = MIB;

	return offer(w, id) ?: wire_send(w, WIRE_OBJECT, &size, 8, "a\0b", 3);
}

static int huge(struct wire *w)
{
	return object(w, UINT64_MAX, "a");
}

static int two_objects(struct wire *w)
{
	uint64_t size = MIB;

	return object(w, size, "a") ?: wire_send(w, WIRE_OBJECT, &size, 8, "b", 1);
}

static int pages_unasked(struct wire *w)
{
	static char page[4096];

	return object(w, MIB, "a") ?: send(w, WIRE_PAGES_ARE, page, sizeof(page));
}

static int odd_pages(struct wire *w)
{
	static char page[4097];

	return object(w, MIB, "a") ?: batch(w, 1, 2, 0, 0, 2) ?:
	       send(w, WIRE_PAGES_ARE, page, sizeof(page));
}

static int other_page(struct wire *w)
{
	static char page[4096] = "not what has that digest";

	return object(w, MIB, "a") ?: batch(w, 1, 1, 0, 0, 1) ?:
	       send(w, WIRE_PAGES_ARE, page, sizeof(page));
}

/* A page that is announced with half of its digest, and sent. */
static int half_a_digest(struct wire *w, int lo, int hi)
{
	struct {
		struct wire_digests head;
		struct wire_run run;
		struct store_digest digest;
	} b = { { 1, 1 }, { 0, 1 }, { 0, 0 } };
	static char page[4096] = "a page";

	b.digest = store_hash(store, page);
	b.digest.lo += lo;
	b.digest.hi += hi;
	return object(w, MIB, "a") ?: send(w, WIRE_DIGESTS, &b, sizeof(b)) ?:
	       send(w, WIRE_PAGES_ARE, page, sizeof(page));
}

static int first_half(struct wire *w)
{
	return half_a_digest(w, 0, 1);
}

static int second_half(struct wire *w)
{
	return half_a_digest(w, 1, 0);
}

/* The page is right, and then there is one more. */
static int one_page_more(struct wire *w)
{
	static char page[4096];

	return half_a_digest(w, 0, 0) ?: send(w, WIRE_PAGES_ARE, page, sizeof(page));
}

static int pages_without(struct wire *w)
{
	static char page[4096];

	return offer(w, id) ?: send(w, WIRE_PAGES_ARE, page, sizeof(page));
}

static int empty_pages(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 1, 2, 0, 0, 2) ?: send(w, WIRE_PAGES_ARE, NULL, 0);
}

static int digests_without(struct wire *w)
{
	return offer(w, id) ?: batch(w, 1, 1, 0, 0, 1);
}

static int half_a_head(struct wire *w)
{
	return object(w, MIB, "a") ?: send(w, WIRE_DIGESTS, "\1\0\0", 4);
}

/* A batch of four pages, with n digests. */
static int digests_of_four(struct wire *w, size_t n)
{
	struct {
		struct wire_digests head;
		struct wire_run run;
		struct store_digest digest[8];
	} b = { { 1, 4 }, { 0, 4 }, { { 1, 1 } } };

	return object(w, MIB, "a") ?:
	       send(w, WIRE_DIGESTS, &b, offsetof(typeof(b), digest) + n * sizeof(b.digest[0]));
}

static int short_batch(struct wire *w)
{
	return digests_of_four(w, 3);
}

static int long_batch(struct wire *w)
{
	return digests_of_four(w, 5);
}

static int run_of_none(struct wire *w)
{
	struct {
		struct wire_digests head;
		struct wire_run run[2];
		struct store_digest digest[1];
	} b = { { 2, 1 }, { { 0, 0 }, { 4096, 1 } }, { { 1, 1 } } };

	return object(w, MIB, "a") ?: send(w, WIRE_DIGESTS, &b, sizeof(b));
}

static int no_pages(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 0, 0, 0, 0, 0);
}

static int many_pages(struct wire *w)
{
	return object(w, 1ull << 40, "a") ?: batch(w, 1, 2 * WIRE_BATCH, 0, 0, 2 * WIRE_BATCH);
}

static int many_runs(struct wire *w)
{
	return object(w, 1ull << 40, "a") ?: batch(w, 2 * WIRE_BATCH, 1, 0, 4096, WIRE_BATCH);
}

static int false_sum(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 2, 3, 0, 65536, 5);
}

static int overflowing_sum(struct wire *w)
{
	return object(w, 1ull << 62, "a") ?: batch(w, 2, 1ull << 63, 0, 1ull << 61, 0x400);
}

static int behind_the_end(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 1, 2, MIB - 4096, 0, 2);
}

static int far_behind(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 1, 1, 0xfffffffffffff000, 0, 1);
}

static int descending(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 2, 1, 8192, -4096ull, 2);
}

static int overlapping(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 2, 2, 0, 4096, 4);
}

static int unaligned(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 1, 1, 100, 0, 1);
}

static int batch_twice(struct wire *w)
{
	return object(w, MIB, "a") ?: batch(w, 1, 4, 0, 0, 4) ?: batch(w, 1, 4, 0, 0, 4) ?:
	       send(w, WIRE_OBJECT_END, NULL, 0);
}

static int window(struct wire *w)
{
	int err = object(w, 1ull << 30, "a");

	for (uint64_t i = 0; i <= WIRE_WINDOW && !err; i++)
		err = batch(w, 1, 1, i * 4096, 0, 1);
	return err;
}

static int end_without(struct wire *w)
{
	return offer(w, id) ?: send(w, WIRE_OBJECT_END, NULL, 0);
}

static int wrong_tail(struct wire *w)
{
	return object(w, 4096 + 10, "a") ?: send(w, WIRE_OBJECT_END, "12345678901", 11);
}

static int early_publish(struct wire *w)
{
	return object(w, 0, "a") ?: send(w, WIRE_PUBLISH, "{}", 2);
}

static int name_twice(struct wire *w)
{
	uint64_t size = 0;

	return object(w, 0, "a") ?: send(w, WIRE_OBJECT_END, NULL, 0) ?:
	       wire_send(w, WIRE_OBJECT, &size, 8, "a", 1) ?:
	       send(w, WIRE_OBJECT_END, NULL, 0) ?: send(w, WIRE_PUBLISH, "{}", 2);
}

static int text_with_nul(struct wire *w)
{
	return offer(w, id) ?: send(w, WIRE_PUBLISH, "{\0}", 3);
}

static int bye_within(struct wire *w)
{
	uint64_t damaged = 0;

	return object(w, MIB, "a") ?: send(w, WIRE_BYE, &damaged, 8);
}

static int answer(struct wire *w)
{
	return offer(w, id) ?: send(w, WIRE_MISSING, "", 1);
}

static int hello_again(struct wire *w)
{
	return hello(w, WIRE_VERSION, false) ?: hello(w, WIRE_VERSION, false);
}

static int ask_for_none(struct wire *w)
{
	return hello(w, WIRE_VERSION, true) ?: send(w, WIRE_ASK, "ffff\n", 5);
}

/* More ids than one request may have, by their number and by their length. */
static int ask_for_many(struct wire *w)
{
	static char ids[1025 * 7 + 1];

	for (int i = 0; i < 1025; i++)
		memcpy(ids + i * 7, "latest\n", 7);
	return hello(w, WIRE_VERSION, true) ?: send(w, WIRE_ASK, ids, 1025 * 7);
}

static int ask_for_much(struct wire *w)
{
	static char ids[64 * 1024];

	memset(ids, 'f', sizeof(ids));
	return hello(w, WIRE_VERSION, true) ?: send(w, WIRE_ASK, ids, sizeof(ids));
}

static int short_bye(struct wire *w)
{
	return hello(w, WIRE_VERSION, false) ?: send(w, WIRE_BYE, "1234", 4);
}

static int ask_twice(struct wire *w)
{
	return hello(w, WIRE_VERSION, true) ?: send(w, WIRE_OFFER, "", 1);
}

#define CASE(f, says) { #f, f, says }
static const struct {
	const char *name;
	int (*send)(struct wire *w);
	const char *says;
} cases[] = {
	CASE(version, "speaks version"),
	CASE(padded_hello, "broke the protocol"),
	CASE(padded_behind, "broke the protocol"),
	CASE(other_magic, "is no store of singvgpu's"),
	CASE(long_hello, "broke the protocol"),
	CASE(damaged_head, "is no message of"),
	CASE(damaged_body, "was changed on its way"),
	CASE(type_zero, "is no message of"),
	CASE(type_too_high, "is no message of"),
	CASE(too_long, "is no message of"),
	CASE(not_hello, "sent message 12 where 1 was due"),
	CASE(short_hello, "speaks version 0"),
	CASE(short_id, "an offer without a proper id"),
	CASE(path_id, "an offer without a proper id"),
	CASE(long_id, "an offer without a proper id"),
	CASE(longer_id, "an offer without a proper id"),
	CASE(long_offer, "an offer of a wrong length"),
	CASE(no_name, "an object that begins wrongly"),
	CASE(name_with_nul, "an object that begins wrongly"),
	CASE(huge, "an object of 18446744073709551615 bytes"),
	CASE(two_objects, "an object that begins wrongly"),
	CASE(pages_unasked, "more pages than were asked for"),
	CASE(pages_without, "pages where none were due"),
	CASE(empty_pages, "pages where none were due"),
	CASE(odd_pages, "pages where none were due"),
	CASE(other_page, "a page of 'a' whose content is not"),
	CASE(first_half, "a page of 'a' whose content is not"),
	CASE(second_half, "a page of 'a' whose content is not"),
	CASE(one_page_more, "more pages than were asked for"),
	CASE(no_pages, "a batch of 0 pages"),
	CASE(many_pages, "a batch of 2048 pages"),
	CASE(many_runs, "a batch of 1024 pages"),
	CASE(digests_without, "digests where none were due"),
	CASE(half_a_head, "digests where none were due"),
	CASE(short_batch, "a batch of a wrong length"),
	CASE(long_batch, "a batch of a wrong length"),
	CASE(false_sum, "that do not fit the object"),
	CASE(overflowing_sum, "that do not fit the object"),
	CASE(behind_the_end, "that do not fit the object"),
	CASE(far_behind, "that do not fit the object"),
	CASE(descending, "that do not fit the object"),
	CASE(overlapping, "that do not fit the object"),
	CASE(unaligned, "that do not fit the object"),
	CASE(run_of_none, "that do not fit the object"),
	CASE(batch_twice, "an object's end too early"),
	CASE(window, "digests where none were due"),
	CASE(end_without, "an object's end too early"),
	CASE(wrong_tail, "an object's end too early"),
	CASE(early_publish, "a checkpoint's end too early"),
	CASE(name_twice, "two parts are called a"),
	CASE(text_with_nul, "a checkpoint's end too early"),
	CASE(bye_within, "message 12 in the middle"),
	CASE(answer, "message 7 in the middle"),
	CASE(hello_again, "message 1 where an offer was due"),
	CASE(short_bye, "an end of a wrong length"),
	CASE(ask_for_none, "no checkpoint ffff"),
	CASE(ask_for_many, "too many checkpoints at once"),
	CASE(ask_for_much, "too many checkpoints at once"),
	CASE(ask_twice, "sent message 3 where 2 was due"),
};

/* Does the sentence have both versions? */
static bool both_versions(const char *why)
{
	char theirs[32], ours[32];

	snprintf(theirs, sizeof(theirs), "version %d of the protocol", WIRE_VERSION + 1);
	snprintf(ours, sizeof(ours), "this side version %d", WIRE_VERSION);
	return strstr(why, theirs) && strstr(why, ours);
}

/* The server says why (-EREMOTEIO, with its sentence) and ends with 125. */
static void run_case(int i)
{
	struct wire w;
	pid_t pid = serve(&w);
	int status = -1, err = cases[i].send(&w);
	uint32_t type;
	ssize_t len = 0;

	close(w.out);		/* a server that waits for more finds that there is none */
	while (!err && len >= 0)
		len = wire_any(&w, &type);
	waitpid(pid, &status, 0);
	close(w.in);
	ok(strstr(w.why.text, "server: ") == w.why.text && strstr(w.why.text, cases[i].says) &&
	   WIFEXITED(status) && WEXITSTATUS(status) == 125 &&
	   (cases[i].send != version || both_versions(w.why.text)),
	   cases[i].name, w.why.err ? w.why.text : "it says nothing");
	wire_free(&w);
}

/* --------------------------------------------------------------------- lies to push and pull */

static int hello_first(struct wire *w)
{
	return wire_receive(w, WIRE_HELLO) < 0 ? -EPROTO :
	       send(w, WIRE_HELLO, &good_hello, sizeof(good_hello));
}

static int take_offer(struct wire *w)
{
	return hello_first(w) ?: wire_receive(w, WIRE_OFFER) < 0 ? -EPROTO : 0;
}

/* Wants the checkpoint, and answers its first batch with n bytes. */
static int answer_with(struct wire *w, size_t n)
{
	static char missing[WIRE_BATCH];

	return take_offer(w) ?: send(w, WIRE_WANT, "\1", 1) ?:
	       wire_receive(w, WIRE_OBJECT) < 0 || wire_receive(w, WIRE_DIGESTS) < 0 ? -EPROTO :
	       send(w, WIRE_MISSING, missing, n);
}

static int says_other_magic(struct wire *w)
{
	return wire_receive(w, WIRE_HELLO) < 0 ? -EPROTO : other_magic(w);
}

static int says_other_version(struct wire *w)
{
	struct wire_hello h = good_hello;

	h.version++;
	return wire_receive(w, WIRE_HELLO) < 0 ? -EPROTO : send(w, WIRE_HELLO, &h, sizeof(h));
}

static int answers_out_of_turn(struct wire *w)
{
	return take_offer(w) ?: send(w, WIRE_DONE, NULL, 0);
}

static int answers_less(struct wire *w)
{
	return answer_with(w, 2);
}

static int answers_more(struct wire *w)
{
	return answer_with(w, 4);
}

static int goes(struct wire *w)
{
	return take_offer(w);
}

static int damages_an_answer(struct wire *w)
{
	struct raw_head h = { WIRE_WANT, 1, 1, 0 };

	return take_offer(w) ?: raw(w, h, true, "\1", 1);
}

static int fails_with(struct wire *w, uint32_t pad, size_t len)
{
	struct {
		struct wire_failed f;
		char text[8];
	} f = { { -EIO, pad }, "no luck" };

	return take_offer(w) ?: send(w, WIRE_FAILED, &f, len);
}

static int fails(struct wire *w)
{
	return fails_with(w, 0, sizeof(struct wire_failed) + 7);
}

static int fails_with_padding(struct wire *w)
{
	return fails_with(w, 1, sizeof(struct wire_failed) + 7);
}

static int fails_in_short(struct wire *w)
{
	return fails_with(w, 0, 7);
}

/* To a pull: a checkpoint with a page that is another than was announced. */
static int sends_another_page(struct wire *w)
{
	static char page[4096] = "not what has that digest";
	struct wire_offer o = { .bytes = 1 };
	uint64_t size = MIB;

	memcpy(o.id, id, sizeof(id));
	return hello_first(w) ?: wire_receive(w, WIRE_ASK) < 0 ? -EPROTO :
	       send(w, WIRE_OFFER, &o, sizeof(o)) ?: wire_receive(w, WIRE_WANT) < 0 ? -EPROTO :
	       wire_send(w, WIRE_OBJECT, &size, 8, "a", 1) ?: batch(w, 1, 1, 0, 0, 1) ?:
	       send(w, WIRE_PAGES_ARE, page, sizeof(page));
}

#define LIE(f, command, says) { #f, f, command, says }
static const struct {
	const char *name;
	int (*tell)(struct wire *w);
	const char *command, *says;
} lies[] = {
	LIE(says_other_magic, "push", "is no store of singvgpu's"),
	LIE(says_other_version, "push", "speaks version 2 of the protocol, this side version 1"),
	LIE(answers_out_of_turn, "push", "sent message 11 where 4 was due"),
	LIE(answers_less, "push", "has answered what was not asked"),
	LIE(answers_more, "push", "has answered what was not asked"),
	LIE(goes, "push", "has ended, or the connection to it"),
	LIE(damages_an_answer, "push", "was changed on its way"),
	LIE(fails, "push", "host:/folder: no luck"),
	LIE(fails_with_padding, "push", "has failed and does not say why"),
	LIE(fails_in_short, "push", "has failed and does not say why"),
	LIE(says_other_magic, "pull", "is no store of singvgpu's"),
	LIE(sends_another_page, "pull", "a page of 'a' whose content is not"),
};

/* What push and pull have started: tells them the lie, and hears what they have to say. */
static int liar(int i)
{
	struct wire w = { .in = 0, .out = 1, .who = "the command" };
	int err = lies[i].tell(&w);
	uint32_t type;

	close(1);
	while (!err && lies[i].tell != goes && wire_any(&w, &type) >= 0)
		;
	wire_free(&w);
	return 0;
}

static void run_lie(int i, const char *self)
{
	char command[2048], said[2048] = "", what[64];
	FILE *f;
	int status;

	snprintf(command, sizeof(command), "SINGVGPU_SSH='%s lie %d' exec timeout 60 %s store --store %s %s "
		 "host:/folder 2>&1 </dev/null", self, i, tool, strcmp(lies[i].command, "push") ? path : full,
		 lies[i].command);
	f = popen(command, "re");
	if (!f)
		exit(1);
	said[fread(said, 1, sizeof(said) - 1, f)] = '\0';
	status = pclose(f);
	snprintf(what, sizeof(what), "%s: %s", lies[i].command, lies[i].name);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 125 && strstr(said, lies[i].says), what, said);
}

/* A store with a checkpoint of one part, of three pages. */
static int fill_store(struct why *why)
{
	static char pages[3 * 4096];
	struct store_part part = { .name = "a" };
	struct store_writer *w = NULL;
	struct store_object *o;
	struct store *s;
	char its_id[STORE_ID];
	int err = store_create(full, NULL, why) ?: store_open(&s, full, STORE_RW, why);

	if (err)
		return err;
	for (size_t i = 0; i < sizeof(pages); i++)
		pages[i] = i % 251 + i / 4096;
	err = store_writer_open(s, 0, &w) ?: store_object_begin(w, &o) ?:
	      store_object_write(o, 0, pages, sizeof(pages)) ?: store_object_end(o, 0, &part.ref) ?:
	      store_writer_flush(w) ?: store_publish(s, &part, 1, "{}", its_id);
	if (err)
		why_text(why, err, store_why()->text);
	store_writer_close(w);
	store_close(s);
	return err;
}

static int count(void *arg, const char *name, uint64_t time)
{
	(void)name, (void)time;
	++*(int *)arg;
	return 0;
}

int main(int argc, char **argv)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	struct store_verify_stats st;
	struct why why = { 0 };
	char command[320];
	char self[512] = "";
	int n = 0;

	if (argc > 2 && !strcmp(argv[1], "lie"))
		return liar(atoi(argv[2]));
	snprintf(tool, sizeof(tool), "%s/tools/singvgpu", build);
	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/store", dir);
	snprintf(full, sizeof(full), "%s/full", dir);
	if (store_create(path, NULL, &why) || store_open(&store, path, 0, &why) || fill_store(&why) ||
	    readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
		printf("Bail out! %s\n", why.text);
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("TAP version 13\n");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		run_case(i);
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
		run_lie(i, self);
	ok(!store_list(store, count, &n) && !n, "no checkpoint came of it", "there are some");
	ok(!store_verify(store, NULL, NULL, NULL, NULL, &st), "the store is well", store_why()->text);
	store_close(store);
	printf("1..%d\n", point);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command) || failed;
}
