// SPDX-License-Identifier: Apache-2.0
/*
 * wire.c - what `singvgpu store serve` answers to messages that are well-formed and wrong
 *
 * Each case is a sender that keeps to the order of store_wire.h up to one point. The server must say
 * what is wrong, end, and leave a store that has no more checkpoints than before and is well.
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

#include "store.h"
#include "store_wire.h"

static char dir[] = "/tmp/svwire.XXXXXX", path[64], tool[512];
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

static int long_offer(struct wire *w)
{
	char big[4096] = { 0 };

	return hello(w, WIRE_VERSION, false) ?: send(w, WIRE_OFFER, big, sizeof(big));
}

static int no_name(struct wire *w)
{
	return object(w, MIB, "");
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

static int ask_twice(struct wire *w)
{
	return hello(w, WIRE_VERSION, true) ?: send(w, WIRE_OFFER, "", 1);
}

#define CASE(f) { #f, f }
static const struct {
	const char *name;
	int (*send)(struct wire *w);
} cases[] = {
	CASE(version), CASE(not_hello), CASE(short_hello), CASE(short_id), CASE(path_id),
	CASE(long_id), CASE(long_offer), CASE(no_name), CASE(huge), CASE(two_objects),
	CASE(pages_unasked), CASE(odd_pages), CASE(other_page), CASE(no_pages), CASE(many_pages),
	CASE(many_runs), CASE(false_sum), CASE(overflowing_sum), CASE(behind_the_end),
	CASE(far_behind), CASE(descending), CASE(overlapping), CASE(unaligned), CASE(batch_twice),
	CASE(window), CASE(end_without), CASE(wrong_tail), CASE(early_publish), CASE(name_twice),
	CASE(text_with_nul), CASE(bye_within), CASE(answer), CASE(hello_again), CASE(ask_for_none),
	CASE(ask_twice),
};

/* The server says why (-EREMOTEIO, with its sentence) and ends with 125. */
static void run_case(int i)
{
	struct wire w;
	pid_t pid = serve(&w);
	int status = -1, err = cases[i].send(&w);
	uint32_t type;
	ssize_t len = 0;

	while (!err && len >= 0)
		len = wire_any(&w, &type);
	close(w.out);
	waitpid(pid, &status, 0);
	close(w.in);
	ok(strstr(w.why, "server: ") == w.why && strlen(w.why) > 12 && WIFEXITED(status) &&
	   WEXITSTATUS(status) == 125, cases[i].name, *w.why ? w.why : "it says nothing");
	wire_free(&w);
}

static int count(void *arg, const char *name, uint64_t time)
{
	(void)name, (void)time;
	++*(int *)arg;
	return 0;
}

int main(void)
{
	const char *build = getenv("SINGVGPU_BUILD") ?: "build";
	struct store_verify_stats st;
	char why[1024];
	int n = 0;

	snprintf(tool, sizeof(tool), "%s/tools/singvgpu", build);
	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/store", dir);
	if (store_create(path, NULL, why, sizeof(why)) ||
	    store_open(&store, path, 0, why, sizeof(why))) {
		printf("Bail out! %s\n", why);
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("TAP version 13\n");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		run_case(i);
	ok(!store_list(store, count, &n) && !n, "no checkpoint came of it", "there are some");
	ok(!store_verify(store, NULL, NULL, NULL, NULL, &st), "the store is well", store_why());
	store_close(store);
	printf("1..%d\n", point);
	snprintf(why, sizeof(why), "rm -rf %s", dir);
	return system(why) || failed;
}
