// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_parts.c - libFuzzer over the texts of a checkpoint: the job's facts, its file "job", its history, the list of its files
 *
 * The first byte says which; what follows is the text, in which the bytes 0x80 to 0xff stand for words that such texts have.
 *
 * Checked, besides the sanitizers': what is refused is named where a sentence is promised; of what is read all that its
 * users rely on holds: ranks and counts are in range, frames ascend, no file of a list lies in what is no folder of it, and
 * what is read of a list or of facts is the same when it has been written again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../harness/fuzz.h"

#include "ckpt_facts.h"
#include "files_i.h"
#include "history.h"
#include "job.h"
#include "tool_i.h"

static const char *const words[] = {
	"singvgpu-job 3\n", "singvgpu-files 1\nboot b 5\nlog -\n", "singvgpu-history 1 ", "version 1\n", "folder /run/singvgpu/1\n",
	"command x\n", "rank 0 1 0 0 2\n", "rank 1 1 0 0 2\n", "proxy 0 0 5 6\n", "stdio 0 0 pipe:[5]\n", "job x\n", "time 5\n",
	"option ranks 2\n", "mapped 5 build:0 /x\n", "library l ", "listen 1.2.3.4 5 6\n", "connection 0 1.1.1.1 2 3.3.3.3 4\n",
	"proxy 0 0 2 ", "00000000000000000000000000000000", " 0", " -1", " 1", " 18446744073709551615", "\n", " ", "%", "/",
	"p 755 0 0 0 /a\n", "d 755 0 0 0 /a/b\n", "r 644 0 0 0 /a/f 5 1 2 3 0 0000000000000001\n", "l 777 0 0 0 /a/l /x\n",
	"h 644 0 0 0 /a/g /a/f\n", "c 644 0 0 0 /a/link_remap.5 5 1 2 3 0 0000000000000001\n", "x user.a 00\n", "a /a/n\n",
	"D 755 0 0 0 /a/b\n", "f 644 0 0 0 /a/p\n", "..", "begin 5 v h i 2 cmd\n", "device 5 0 0 1 name\n", "comm 5 ff 2 0,1\n",
	"checkpoint 5 1 1 1 0 1 1 1 id store\n", "phase a 1 1 1 1\n", "failed 5 1 at why\n", "restore 5 1 i s h v w\n",
	"end 5 0 how\n", "full\n", " 64 0\n", " 0 104\n",
};

#define WORDS (sizeof(words) / sizeof(words[0]))

const struct store_ref *store_checkpoint_find(const struct store_checkpoint *c, const char *name)
{
	static const struct store_ref ref;

	(void)c;
	return name[strlen(name) - 1] == '1' ? &ref : NULL;
}

uint64_t store_ref_size(const struct store_ref *r)
{
	(void)r;
	return 5;
}

/* What the readers' files have beside them; no reader calls it. */
#define NEVER(what) what { abort(); }
NEVER(char *history_pack(const char *dir, uid_t owner, const char *more, size_t *len))
NEVER(void history_keep(const char *id, const char *all, size_t len))
NEVER(int store_trusts(const struct store *s, int fd, const char *path))
NEVER(int store_object_open(struct store *s, const struct store_ref *ref, struct store_reader **r))
NEVER(uint64_t store_size(const struct store_reader *r))
NEVER(ssize_t store_read(struct store_reader *r, uint64_t off, void *buf, size_t len))
NEVER(void store_reader_close(struct store_reader *r))

static void facts(const char *text, size_t len)
{
	struct ckpt_facts f, g;
	struct why why = { 0 };
	struct rundir_job job = { .ranks = 2 };
	char *again;
	int rc = facts_read(&f, text, len);

	if (rc) {
		MUST(rc == -EBADMSG || rc == -EPROTONOSUPPORT);
		return;
	}
	rc = facts_check(&f, &job, &why);
	MUST(!rc || (rc == -EBADMSG && *why.text));
	for (int i = 0; !rc && i < f.proxies; i++)
		MUST(f.proxy[i].rank >= 0 && f.proxy[i].rank < 2 && f.proxy[i].info.seat < (int)CTL_SEATS);
	again = facts_write(&f, &len);
	MUST(again && !facts_read(&g, again, len));
	MUST(g.proxies == f.proxies && g.libraries == f.libraries && g.ports == f.ports);
	MUST(!g.proxies || !memcmp(g.proxy, f.proxy, g.proxies * sizeof(*g.proxy)));
	free(again);
	facts_free(&g);
	facts_free(&f);
}

static void job_file(const char *text, size_t len)
{
	struct rundir_job *job = calloc(1, sizeof(*job));
	int rc = len ? rundir_parse(job, text, len) : -EBADMSG;

	MUST(!rc || rc == -EBADMSG);
	MUST(rc || (job->command && *job->path == '/' && job->ranks));
	rundir_list_free(job, 1);
}

static void history(const char *text, size_t len)
{
	struct why why = { 0 };
	struct past p;
	int rc = past_read(&p, text, len, &why);
	uint64_t sum = 0;

	MUST(!rc || ((rc == -EBADMSG || rc == -EPROTONOSUPPORT) && *why.text));
	for (size_t i = 0; !rc && i < p.frames; i++) {
		MUST(!i || p.time[i] > p.time[i - 1]);
		for (unsigned int r = 0; r < p.ranks; r++)
			sum += past_count(&p, i, r, HISTORY_MEMORY);
	}
	for (size_t i = 0; !rc && i < p.events; i++) {
		MUST(p.event[i].text || p.event[i].kind == PAST_CHECKPOINT);
		MUST(p.event[i].rank >= 0 && p.event[i].rank < (int)HISTORY_RANKS && p.event[i].phases <= HISTORY_PHASES);
	}
	past_free(&p);
	(void)sum;
}

static char *listed(const struct files *l, size_t *len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	MUST(out && !files_write(l, out) && !fclose(out));
	return text;
}

static void list(char *text)
{
	struct why why = { 0 };
	struct files l, m;
	size_t len, more;
	char *first, *second;
	int rc = files_parse(&l, text, &why);

	if (rc) {
		MUST((rc == -EPROTO || rc == -EPROTONOSUPPORT) && *why.text);
		return;
	}
	rc = files_check(&l, NULL, &why);
	MUST(!rc || (rc == -EPROTO && *why.text));
	for (size_t i = 0; !rc && i < l.n; i++) {
		const struct file *f = &l.file[i], *above;
		char path[PATH_MAX];
		size_t n = files_folder(f->path, strlen(f->path));

		MUST(files_is_plain(f->path) && (!i || strcmp(f[-1].path, f->path) < 0));
		if (strchr("as", f->kind) || !n)
			continue;
		MUST(!(f->mode & ~01777));
		memcpy(path, f->path, n);
		path[n] = 0;
		above = files_find(&l, path);
		MUST(above && strchr("pdD", above->kind));
	}
	if (!rc) {
		first = listed(&l, &len);
		MUST(!files_parse(&m, strdupa(first), &why));
		second = listed(&m, &more);
		MUST(len == more && !memcmp(first, second, len));
		free(first);
		free(second);
		files_free(&m);
	}
	files_free(&l);
}

/* The line of a proxy, as it is written. */
static void put_proxy(FILE *out)
{
	static struct ckpt_proxy p = { .client = 2, .info = { .window = 1 << 20, .window_len = 1 << 20 } };
	static struct ckpt_facts f = { .job = "", .proxy = &p, .proxies = 1 };
	size_t len;
	char *text = facts_write(&f, &len);

	fputs(strstr(text, "proxy"), out);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct history_head h = { .magic = HISTORY_MAGIC, .version = HISTORY_VERSION, .ranks = 1,
				  .counters = HISTORY_COUNTERS };
	char *text = NULL;
	size_t len;
	FILE *out;

	if (!size)
		return 0;
	out = open_memstream(&text, &len);
	MUST(out);
	for (size_t i = 1; i < size; i++) {
		if (data[i] >= 0x80 && (size_t)data[i] - 0x80 < WORDS)
			fputs(words[data[i] - 0x80], out);
		else if (data[i] == 0xfe)
			put_proxy(out);
		else if (data[i] == 0xff)
			fwrite(&h, 1, sizeof(h), out);
		else
			putc(data[i], out);
	}
	MUST(!fclose(out));
	switch (*data % 4) {
	case 0:
		facts(text, len);
		break;
	case 1:
		job_file(text, len);
		break;
	case 2:
		history(text, len);
		break;
	default:
		list(text);
		break;
	}
	free(text);
	return 0;
}
