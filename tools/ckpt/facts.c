// SPDX-License-Identifier: Apache-2.0
/*
 * facts.c - writes and reads the facts of a job; ckpt_facts.h has the format
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt_facts.h"
#include "rundir.h"
#include "tool_i.h"

/* ------------------------------------------------------------------------------- words */

void facts_word(FILE *out, const char *word)
{
	if (!*word)
		putc('%', out);
	for (; *word; word++) {
		unsigned char c = *word;

		if (c <= ' ' || c > '~' || c == '%')
			fprintf(out, "%%%02x", c);
		else
			putc(c, out);
	}
}

static int hex_digit(int c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void unescape(char *word)
{
	char *to = word;

	for (; *word; word++) {
		int high = *word == '%' ? hex_digit(word[1]) : -1;
		int low = high >= 0 ? hex_digit(word[2]) : -1;

		if (low >= 0) {
			*to++ = high << 4 | low;
			word += 2;
		} else if (*word != '%') {
			*to++ = *word;
		}
	}
	*to = 0;
}

int facts_words(char *line, char *words[], int room)
{
	int n = 0;

	for (char *at = line, *next; at && *at && n < room; at = next) {
		next = strchr(at, ' ');
		if (next)
			*next++ = 0;
		words[n++] = at;
	}
	for (int i = 0; i < n; i++)
		unescape(words[i]);
	return n;
}

static void put_hex(FILE *out, const uint8_t *bytes, size_t n)
{
	putc(' ', out);
	while (n--)
		fprintf(out, "%02x", *bytes++);
}

static int get_hex(const char *word, uint8_t *bytes, size_t n)
{
	for (; n; n--, word += 2) {
		int high = hex_digit(word[0]), low = high < 0 ? -1 : hex_digit(word[1]);

		if (low < 0)
			return -EBADMSG;
		*bytes++ = high << 4 | low;
	}
	return *word ? -EBADMSG : 0;
}

static void put_text(FILE *out, const char *key, const char *text)
{
	if (!text)
		return;
	fprintf(out, "%s ", key);
	facts_word(out, text);
	putc('\n', out);
}

/* ----------------------------------------------------------------------------- proxies */

/* The members of struct ckpt_proxy in the text, for writing and for reading. */
enum kind { INT, UINT, ULONG, TEXT, HEX };

#define MEMBER(kind, m) { kind, offsetof(struct ckpt_proxy, m), \
			  sizeof(((struct ckpt_proxy *)0)->m) }
static const struct {
	enum kind kind;
	size_t at, size;
} members[] = {
	MEMBER(INT, rank), MEMBER(INT, serial), MEMBER(INT, client),
	MEMBER(HEX, device), MEMBER(HEX, observed), MEMBER(HEX, session),
	MEMBER(HEX, channel), MEMBER(HEX, arena),
	MEMBER(TEXT, info.device.name), MEMBER(HEX, info.device.uuid),
	MEMBER(INT, info.device.ordinal), MEMBER(INT, info.device.driver_version),
	MEMBER(INT, info.device.cc_major), MEMBER(INT, info.device.cc_minor),
	MEMBER(ULONG, info.device.total_mem), MEMBER(TEXT, info.driver),
	MEMBER(ULONG, info.window), MEMBER(ULONG, info.window_len), MEMBER(ULONG, info.budget),
	MEMBER(ULONG, info.mapped), MEMBER(ULONG, info.pinned), MEMBER(ULONG, info.arena_len),
	MEMBER(TEXT, info.backend), MEMBER(HEX, info.channel_id), MEMBER(UINT, info.generation),
	MEMBER(ULONG, info.fd_dev), MEMBER(ULONG, info.fd_ino), MEMBER(TEXT, info.inherit),
	MEMBER(HEX, info.home), MEMBER(INT, info.seat), MEMBER(HEX, comms), MEMBER(UINT, info.logical),
	MEMBER(UINT, info.devices), MEMBER(UINT, info.turns),
};

#define N_MEMBERS ((int)(sizeof(members) / sizeof(members[0])))
#define N_OLDER	(N_MEMBERS - 3)		/* of 8f2437f, which ends with comms */

static void put_proxy(FILE *out, const struct ckpt_proxy *p)
{
	fputs("proxy", out);
	for (int i = 0; i < N_MEMBERS; i++) {
		const void *m = (const char *)p + members[i].at;

		switch (members[i].kind) {
		case INT:
			fprintf(out, " %d", *(const int *)m);
			break;
		case UINT:
			fprintf(out, " %u", *(const unsigned int *)m);
			break;
		case ULONG:
			fprintf(out, " %llu", (unsigned long long)*(const uint64_t *)m);
			break;
		case TEXT:
			putc(' ', out);
			facts_word(out, m);
			break;
		case HEX:
			put_hex(out, m, members[i].size);
			break;
		}
	}
	putc('\n', out);
}

static int get_proxy(struct ckpt_proxy *p, char *const *word, int words)
{
	memset(p, 0, sizeof(*p));
	for (int i = 0; i < N_MEMBERS && i < words; i++) {
		void *m = (char *)p + members[i].at;
		char *end = "";

		errno = 0;
		switch (members[i].kind) {
		case INT:
			*(int *)m = strtol(word[i], &end, 10);
			break;
		case UINT:
			*(unsigned int *)m = strtoul(word[i], &end, 10);
			break;
		case ULONG:
			*(uint64_t *)m = strtoull(word[i], &end, 10);
			break;
		case TEXT:
			if (strlen(word[i]) >= members[i].size)
				return -EBADMSG;
			strcpy(m, word[i]);
			break;
		case HEX:
			if (get_hex(word[i], m, members[i].size))
				return -EBADMSG;
			break;
		}
		if (errno || *end)
			return -EBADMSG;
	}
	return 0;
}

/* ----------------------------------------------------------------------------- writing */

char *facts_write(const struct ckpt_facts *f, size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out)
		return NULL;
	fprintf(out, "singvgpu-job %u\n", CKPT_FORMAT);
	put_text(out, "version", f->version);
	put_text(out, "host", f->host);
	fprintf(out, "time %llu\nstood %llu\nuid %u\n", (unsigned long long)f->time_ns,
		(unsigned long long)f->stood_ns, f->uid);
	put_text(out, "job", f->job);
	put_text(out, "libdir", f->libdir);
	for (int i = 0; i < f->options; i++) {
		fprintf(out, "option %s ", f->option[i].name);
		facts_word(out, f->option[i].value);
		putc('\n', out);
	}
	for (int i = 0; i < f->proxies; i++)
		put_proxy(out, &f->proxy[i]);
	for (int i = 0; i < f->mappeds; i++) {
		fprintf(out, "mapped %llu %s ", (unsigned long long)f->mapped[i].size,
			f->mapped[i].identity);
		facts_word(out, f->mapped[i].path);
		putc('\n', out);
	}
	for (int i = 0; i < f->libraries; i++) {
		fputs("library ", out);
		facts_word(out, f->library[i].name);
		put_hex(out, f->library[i].ref.bytes, sizeof(f->library[i].ref.bytes));
		putc('\n', out);
	}
	for (int i = 0; i < f->ports; i++)
		fprintf(out, "listen %s %d %lu\n", f->port[i].address, f->port[i].port,
			f->port[i].inode);
	for (int i = 0; i < f->connections; i++) {
		const struct ckpt_connection *c = &f->connection[i];

		fprintf(out, "connection %d %s %d %s %d\n", c->rank, c->from.address, c->from.port, c->to.address,
			c->to.port);
	}
	for (int i = 0; i < f->parts; i++) {
		fprintf(out, "part %llu ", (unsigned long long)f->part[i].size);
		facts_word(out, f->part[i].name);
		putc('\n', out);
	}
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

/* ----------------------------------------------------------------------------- reading */

/* Room for one more element of size bytes, zeroed; NULL: no memory. */
static void *grow(void *list, int *n, size_t size)
{
	char **p = list, *more = realloc(*p, (*n + 1) * size);

	if (!more)
		return NULL;
	*p = more;
	return memset(more + (*n)++ * size, 0, size);
}

static int set_text(char **to, const char *text)
{
	free(*to);
	*to = strdup(text);
	return *to ? 0 : -ENOMEM;
}

int facts_add_option(struct ckpt_facts *f, const char *name, const char *value)
{
	struct ckpt_option *o = grow(&f->option, &f->options, sizeof(*o));

	if (!o)
		return -ENOMEM;
	o->name = strdup(name);
	o->value = strdup(value);
	return o->name && o->value ? 0 : -ENOMEM;
}

int facts_add_port(struct ckpt_facts *f, const struct ckpt_port *p)
{
	struct ckpt_port *to = grow(&f->port, &f->ports, sizeof(*to));

	if (!to)
		return -ENOMEM;
	*to = *p;
	return 0;
}

int facts_add_connection(struct ckpt_facts *f, const struct ckpt_connection *c)
{
	struct ckpt_connection *to = grow(&f->connection, &f->connections, sizeof(*to));

	if (!to)
		return -ENOMEM;
	*to = *c;
	return 0;
}

static int read_connection(struct ckpt_facts *f, char **w)
{
	struct ckpt_connection c = { .rank = atoi(w[1]), .from.port = atoi(w[3]), .to.port = atoi(w[5]) };

	snprintf(c.from.address, sizeof(c.from.address), "%s", w[2]);
	snprintf(c.to.address, sizeof(c.to.address), "%s", w[4]);
	return facts_add_connection(f, &c);
}

static int read_port(struct ckpt_facts *f, char **w)
{
	struct ckpt_port p = { .port = atoi(w[2]), .inode = strtoul(w[3], NULL, 10) };

	snprintf(p.address, sizeof(p.address), "%s", w[1]);
	return facts_add_port(f, &p);
}

static int read_mapped(struct ckpt_facts *f, char **w)
{
	struct ckpt_mapped *m = grow(&f->mapped, &f->mappeds, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->size = strtoull(w[1], NULL, 10);
	snprintf(m->identity, sizeof(m->identity), "%s", w[2]);
	return set_text(&m->path, w[3]);
}

int facts_add_part(struct ckpt_facts *f, const char *name, uint64_t size)
{
	struct ckpt_part *p = grow(&f->part, &f->parts, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->size = size;
	p->name = strdup(name);
	return p->name ? 0 : -ENOMEM;
}

static int read_library(struct ckpt_facts *f, char **w)
{
	struct ckpt_library *l = grow(&f->library, &f->libraries, sizeof(*l));

	if (!l || set_text(&l->name, w[1]))
		return -ENOMEM;
	return get_hex(w[2], l->ref.bytes, sizeof(l->ref.bytes));
}

static int read_line(struct ckpt_facts *f, char **w, int n)
{
	struct ckpt_proxy *p;

	if (n == 2 && !strcmp(w[0], "version"))
		snprintf(f->version, sizeof(f->version), "%s", w[1]);
	else if (n == 2 && !strcmp(w[0], "host"))
		snprintf(f->host, sizeof(f->host), "%s", w[1]);
	else if (n == 2 && !strcmp(w[0], "time"))
		f->time_ns = strtoull(w[1], NULL, 10);
	else if (n == 2 && !strcmp(w[0], "stood"))
		f->stood_ns = strtoull(w[1], NULL, 10);
	else if (n == 2 && !strcmp(w[0], "uid"))
		f->uid = strtoul(w[1], NULL, 10);
	else if (n == 2 && !strcmp(w[0], "job"))
		return set_text(&f->job, w[1]);
	else if (n == 2 && !strcmp(w[0], "libdir"))
		return set_text(&f->libdir, w[1]);
	else if (n == 3 && !strcmp(w[0], "option"))
		return facts_add_option(f, w[1], w[2]);
	else if (n == 4 && !strcmp(w[0], "mapped"))
		return read_mapped(f, w);
	else if (n == 3 && !strcmp(w[0], "part"))
		return facts_add_part(f, w[2], strtoull(w[1], NULL, 10));
	else if (n == 3 && !strcmp(w[0], "library"))
		return read_library(f, w);
	else if (n == 4 && !strcmp(w[0], "listen"))
		return read_port(f, w);
	else if (n == 6 && !strcmp(w[0], "connection"))
		return read_connection(f, w);
	else if (n > N_OLDER && !strcmp(w[0], "proxy")) {
		p = grow(&f->proxy, &f->proxies, sizeof(*p));
		return p ? get_proxy(p, w + 1, n - 1) : -ENOMEM;
	}
	return 0;
}

int facts_read(struct ckpt_facts *f, const char *text, size_t len)
{
	char *copy = strndup(text, len), *words[64], *next;
	int err = copy ? 0 : -ENOMEM;
	bool first = true;

	memset(f, 0, sizeof(*f));
	for (char *line = copy; !err && line && *line; line = next) {
		int n;

		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		n = facts_words(line, words, 64);
		if (first) {
			if (n != 2 || strcmp(words[0], "singvgpu-job"))
				err = -EBADMSG;
			else if ((f->format = strtoul(words[1], NULL, 10)) != CKPT_FORMAT)
				err = -EPROTONOSUPPORT;
			first = false;
		} else {
			err = read_line(f, words, n);
		}
	}
	free(copy);
	if (!err && (first || !f->job))
		err = -EBADMSG;
	if (err && err != -EPROTONOSUPPORT)
		facts_free(f);
	return err;
}

int facts_logical(const struct ckpt_proxy *p)
{
	return p->info.logical ? (int)p->info.logical - 1 : p->info.device.ordinal;
}

/* The same rank's proxy, or the same seat, twice. */
static bool is_twice(const struct ckpt_facts *f, int i)
{
	const struct ckpt_proxy *p = &f->proxy[i];

	for (int k = 0; k < i; k++)
		if ((f->proxy[k].rank == p->rank && f->proxy[k].serial == p->serial) ||
		    (p->info.seat >= 0 && f->proxy[k].info.seat == p->info.seat))
			return true;
	return false;
}

int facts_home(const struct ckpt_facts *f, int i)
{
	static const uint8_t none[sizeof(f->proxy->info.home)];
	const struct ckpt_proxy *p = &f->proxy[i];

	if (!memcmp(p->info.home, none, sizeof(none)))
		return -1;
	for (int k = 0; k < i; k++)
		if (!memcmp(p->info.home, f->proxy[k].info.channel_id, sizeof(none)) && f->proxy[k].client == p->client)
			return k;
	return -EBADMSG;
}

/* Whether the job's file has the proxy elsewhere; an older file does not say where. */
static bool is_moved(const struct ckpt_proxy *p, const struct rundir_job *job)
{
	for (int i = 0; i < job->proxies; i++)
		if (job->proxy[i].rank == p->rank && job->proxy[i].serial == p->serial)
			return p->info.seat >= 0 && job->proxy[i].seat >= 0 && job->proxy[i].seat != p->info.seat;
	return false;
}

int facts_check(const struct ckpt_facts *f, const struct rundir_job *job, struct why *why)
{
	if (job->ranks < 1 || job->ranks > SEATING_RANKS)
		return why_set(why, -EBADMSG, "it has %d ranks", job->ranks);
	if (f->proxies > CTL_SEATS)
		return why_set(why, -EBADMSG, "it has %d proxies", f->proxies);
	for (int i = 0; i < f->proxies; i++) {
		const struct ckpt_proxy *p = &f->proxy[i];
		const struct ctl_info *info = &p->info;

		if (p->rank < 0 || p->rank >= job->ranks || p->serial < 0 || p->client < 1)
			return why_set(why, -EBADMSG, "its proxy %d is that of process %d of rank %d, which has %d "
				       "ranks", i, p->client, p->rank, job->ranks);
		if (info->seat < -1 || info->seat >= (int)CTL_SEATS || is_twice(f, i))
			return why_set(why, -EBADMSG, "its proxy %d has the seat %d, or is there twice", i,
				       info->seat);
		if (is_moved(p, job))
			return why_set(why, -EBADMSG, "its proxy %d has the seat %d, which the job's file does not say", i,
				       info->seat);
		if (info->window + info->window_len < info->window || info->device.ordinal < 0 ||
		    info->device.ordinal >= SEATING_DEVICES || info->logical > SEATING_DEVICES ||
		    info->devices > SEATING_DEVICES)
			return why_set(why, -EBADMSG, "its proxy %d has the device %d, and a window of %llu bytes at "
				       "%#llx", i, info->device.ordinal, (unsigned long long)info->window_len,
				       (unsigned long long)info->window);
		if (facts_home(f, i) == -EBADMSG)
			return why_set(why, -EBADMSG, "its proxy %d uses the arena of a session that is not there", i);
	}
	for (int i = 0; i < f->connections; i++)
		if (f->connection[i].rank < 0 || f->connection[i].rank >= job->ranks)
			return why_set(why, -EBADMSG, "rank %d has a connection", f->connection[i].rank);
	return 0;
}

void facts_free(struct ckpt_facts *f)
{
	for (int i = 0; i < f->options; i++) {
		free(f->option[i].name);
		free(f->option[i].value);
	}
	for (int i = 0; i < f->mappeds; i++)
		free(f->mapped[i].path);
	for (int i = 0; i < f->libraries; i++)
		free(f->library[i].name);
	for (int i = 0; i < f->parts; i++)
		free(f->part[i].name);
	free(f->part);
	free(f->option);
	free(f->proxy);
	free(f->mapped);
	free(f->library);
	free(f->port);
	free(f->connection);
	free(f->job);
	free(f->libdir);
	memset(f, 0, sizeof(*f));
}

const char *facts_option(const struct ckpt_facts *f, const char *name)
{
	for (int i = 0; i < f->options; i++)
		if (!strcmp(f->option[i].name, name))
			return f->option[i].value;
	return NULL;
}
