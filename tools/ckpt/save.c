// SPDX-License-Identifier: Apache-2.0
/*
 * save.c - stores images, files, libraries and facts, and publishes their manifest
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt_past.h"
#include "ckpt_save.h"
#include "files.h"
#include "history.h"

/* ------------------------------------------------------------------------------- store */

static int stored(int err, const char *what, struct why *why)
{
	struct why of_store = { 0 };

	if (store_failed(&of_store, err))
		why_set(why, err, "%s: %s", what, of_store.text);
	return err;
}

int save_open(struct save *s, const char *dir, bool (*stop)(void *arg), void *arg, struct why *why)
{
	int err = store_open_unless(&s->store, dir, STORE_RW | STORE_WAIT, stop, arg, why);

	if (err == -ENOENT) {
		why_clear(why);
		err = ckpt_store_parents(dir, why) ?: store_create(dir, NULL, why);
		if (err == -EEXIST)
			why_clear(why);
		if (!err || err == -EEXIST)
			err = store_open_unless(&s->store, dir, STORE_RW | STORE_WAIT, stop, arg, why);
	}
	if (err)
		return err;
	err = store_writer_open(s->store, STORE_TOUCHED, &s->images);
	if (!err)
		err = store_writer_open(s->store, STORE_ONE_THREAD, &s->own);
	stored(err, "the store", why);
	if (!err) {
		err = images_to_store(&s->parts, s->images, &s->sink);
		if (err)
			why_set(why, err, "no memory for the images' names");
	}
	return err;
}

void save_close(struct save *s)
{
	for (int i = 0; i < s->n_parts; i++)
		free(s->part[i].name);
	free(s->part);
	images_parts_free(s->parts);
	store_writer_close(s->own);
	store_writer_close(s->images);
	store_close(s->store);
	facts_free(&s->facts);
	free(s->job.command);
	free(s->job.rank);
	free(s->job.proxy);
	memset(s, 0, sizeof(*s));
}

void save_stats(const struct save *s, struct store_writer_stats *all)
{
	const struct store_writer *w[] = { s->images, s->own };
	struct store_writer_stats st;

	*all = (struct store_writer_stats){ 0 };
	for (int i = 0; i < 2; i++) {
		if (!w[i])
			continue;
		store_writer_stats(w[i], &st);
		all->in += st.in;
		all->zero += st.zero;
		all->known += st.known;
		all->fresh += st.fresh;
		all->stored += st.stored;
	}
}

static int add_part(struct save *s, const char *name, const struct store_ref *ref)
{
	struct save_part *more = realloc(s->part, (s->n_parts + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	s->part = more;
	more[s->n_parts] = (struct save_part){ strdup(name), *ref };
	return more[s->n_parts++].name ? 0 : -ENOMEM;
}

/* --------------------------------------------------------------------------------- job */

pid_t save_inner_pid(pid_t pid)
{
	char path[32], *line = NULL, *last;
	pid_t inner = 0;
	size_t size = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	in = fopen(path, "re");
	while (in && getline(&line, &size, in) > 0)
		if (!strncmp(line, "NSpid:", 6) && (last = strrchr(line, '\t')))
			inner = atoi(last + 1);
	free(line);
	if (in)
		fclose(in);
	return inner;
}

/* All of a file; malloc'ed. NULL: it cannot be read. */
static char *read_file(const char *path, size_t *len)
{
	char part[4096], *text = NULL;
	FILE *in = fopen(path, "re"), *out = in ? open_memstream(&text, len) : NULL;
	bool whole;
	size_t n;

	while (out && (n = fread(part, 1, sizeof(part), in)))
		fwrite(part, 1, n, out);
	whole = out && !ferror(in);
	if (out && fclose(out))
		whole = false;
	if (in)
		fclose(in);
	if (whole)
		return text;
	free(text);
	return NULL;
}

static int read_options(struct save *s, const char *rundir)
{
	char *text, *words[4];
	size_t len;
	int err = rundir_read(rundir, geteuid(), "options", &text, &len);

	if (err)
		return err;
	for (char *line = text, *next; !err && line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		if (facts_words(line, words, 4) == 3 && !strcmp(words[0], "option"))
			err = facts_add_option(&s->facts, words[1], words[2]);
	}
	free(text);
	return err;
}

int save_job(struct save *s, const char *rundir, struct why *why)
{
	struct ckpt_facts *f = &s->facts;
	struct stat st;
	size_t len = 0;
	int err = rundir_read(rundir, geteuid(), "job", &f->job, &len);

	err = err ?: rundir_parse(&s->job, f->job, len);
	if (err == -EPROTONOSUPPORT)
		return why_set(why, err, "its supervisor has written %s/job in version %u of the format, singvgpu %s "
			       "reads version %u: use the version that has started it", rundir, s->job.version,
			       SINGVGPU_VERSION, RUNDIR_VERSION);
	if (err)
		return why_set(why, err, "%s/job cannot be read: %s", rundir, strerror(-err));
	snprintf(s->job.path, sizeof(s->job.path), "%s", rundir);
	if (!s->job.init && s->job.ranks > 1)
		return why_set(why, -ENOTSUP, "the job was started without a pid namespace of its own, "
			       "with several ranks: start it as root, without --host-pids");
	snprintf(f->version, sizeof(f->version), "%s", SINGVGPU_VERSION);
	gethostname(f->host, sizeof(f->host) - 1);
	f->time_ns = wall_ns();
	/* The job's user; we are root. */
	err = lstat(rundir, &st) ? -errno : 0;
	if (!err) {
		f->uid = st.st_uid;
		err = read_options(s, rundir);
	}
	if (err)
		why_set(why, err, "%s/options cannot be read: %s", rundir, strerror(-err));
	return err;
}

static int save_library(struct save *s, const char *path)
{
	struct ckpt_library *more, *l;
	struct store_ref ref;
	size_t len;
	char name[PATH_MAX], *data = read_file(path, &len);
	int err;

	if (!data)
		return -EIO;
	err = store_object_whole(s->own, data, len, &ref);
	free(data);
	if (err)
		return err;
	more = realloc(s->facts.library, (s->facts.libraries + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	s->facts.library = more;
	l = &more[s->facts.libraries++];
	memcpy(l->ref.bytes, ref.b, sizeof(ref.b));
	l->name = strdup(strrchr(path, '/') + 1);
	snprintf(name, sizeof(name), "lib/%.255s", strrchr(path, '/') + 1);
	return l->name ? add_part(s, name, &ref) : -ENOMEM;
}

int save_mapped(struct save *s, bool (*stop)(void *arg), void *arg, struct why *why)
{
	const char *libdir = facts_option(&s->facts, "libdir");
	size_t own = libdir ? strlen(libdir) : 0;
	pid_t *pids;
	int n = ckpt_tree(s->job.init ?: s->job.rank[0].pid, &pids), err;

	err = n < 0 ? n : ckpt_lost_running(pids, n, why) ?: ckpt_mapped(pids, n, &s->facts, stop, arg, why);
	free(n < 0 ? NULL : pids);
	if (!err && libdir) {
		s->facts.libdir = strdup(libdir);
		err = s->facts.libdir ? 0 : -ENOMEM;
	}
	for (int i = 0; i < s->facts.mappeds && !err && own; i++) {
		const char *path = s->facts.mapped[i].path;

		if (!strncmp(path, libdir, own) && path[own] == '/' && !strchr(path + own + 1, '/'))
			err = save_library(s, path);
	}
	if (err)
		why_set(why, err, "what the job has mapped: %s", strerror(-err));
	return err;
}

int save_sockets(struct save *s, bool outside, struct why *why)
{
	pid_t *pids;
	int n = ckpt_tree(s->job.init ?: s->job.rank[0].pid, &pids), err;

	err = n < 0 ? n : ckpt_lost(pids, n, why) ?: ckpt_ports(&s->job, pids, n, outside, &s->facts, why);
	err = err ?: save_pipes(s, pids, n, why);
	free(n < 0 ? NULL : pids);
	return why_text(why, err, "");
}

int save_keys(const struct save *s, const char *const **keys, size_t *n)
{
	const char **list = calloc(3 * s->job.ranks + 1, sizeof(*list));

	*keys = list;
	*n = 0;
	if (!list)
		return -ENOMEM;
	for (int r = 0; r < s->job.ranks; r++)
		for (int i = 0; i < 3; i++)
			if (*s->job.rank[r].stdio[i])
				list[(*n)++] = s->job.rank[r].stdio[i];
	if (*s->job.status)
		list[(*n)++] = s->job.status;
	return 0;
}

/* This job's last checkpoint, if this store has it: files unchanged since are not read again. */
static struct store_checkpoint *former(const struct save *s)
{
	struct store_checkpoint *c = NULL;
	char *word[4], *text;
	int n = ckpt_read_note(s->job.path, "last", word, 4, &text);

	if (n >= 2 && !strcmp(word[1], store_dir(s->store)) &&
	    store_checkpoint_open(s->store, word[0], &c))
		c = NULL;
	free(text);
	return c;
}

/* What the checkpoint contains need not be here at the restore. */
static void forget_saved(struct ckpt_facts *f, const struct files_save *by)
{
	int left = 0;

	for (int i = 0; i < f->mappeds; i++) {
		if (files_saved(by, f->mapped[i].path))
			free(f->mapped[i].path);
		else
			f->mapped[left++] = f->mapped[i];
	}
	f->mappeds = left;
}

int save_files(struct save *s, const struct criu_links *links, struct why *why)
{
	char log[PATH_MAX + 8];
	const char *skip[] = { s->job.path, store_dir(s->store), NULL };
	struct store_checkpoint *last = former(s);
	struct files_save f = { .log = log, .skip = skip, .former = last };
	pid_t *pids;
	int n = ckpt_tree(s->job.init ?: s->job.rank[0].pid, &pids), err;

	snprintf(log, sizeof(log), "%s/files", s->job.path);
	f.pids = pids;
	f.n_pids = n < 0 ? 0 : n;
	f.links = calloc(links->n + 1, sizeof(*f.links));
	for (size_t i = 0; i < links->n && f.links; i++)
		f.links[f.n_links++] = links->link[i].path;
	err = n < 0 ? n : !f.links ? -ENOMEM : files_save(&f, s->store, s->own);
	why_text(why, err, f.why.text);
	for (size_t i = 0; i < f.n_parts && !err; i++)
		err = why_text(why, add_part(s, f.parts[i].name, &f.parts[i].ref), "");
	if (!err)
		forget_saved(&s->facts, &f);
	s->file_bytes = f.bytes;
	files_save_free(&f);
	free(f.links);
	if (last)
		store_checkpoint_close(last);
	free(pids);
	return err;
}

/* ---------------------------------------------------------------------------- manifest */

static void json_devices(struct json *j, const struct ckpt_facts *f)
{
	json_open(j, "sessions", '[');
	for (int i = 0; i < f->proxies; i++) {
		const struct ckpt_proxy *p = &f->proxy[i];

		json_open(j, NULL, '{');
		json_int(j, "rank", p->rank);
		json_int(j, "proxy", p->serial);
		json_int(j, "client", p->client);
		json_string(j, "device", p->info.device.name);
		json_int(j, "ordinal", p->info.device.ordinal);
		json_uint(j, "device_bytes", p->info.mapped);
		json_uint(j, "pinned_bytes", p->info.pinned);
		json_string(j, "channel", p->info.backend);
		json_close(j, '}');
	}
	json_close(j, ']');
}

static char *describe(const struct save *s, struct phases *ps, const char *criu)
{
	struct json j = { 0 };
	char *text = NULL;
	size_t len;

	j.out = open_memstream(&text, &len);
	if (!j.out)
		return NULL;
	json_open(&j, NULL, '{');
	json_string(&j, "kind", "singvgpu job");
	json_int(&j, "format", CKPT_FORMAT);
	json_string(&j, "singvgpu", s->facts.version);
	json_string(&j, "criu", criu);
	json_string(&j, "host", s->facts.host);
	json_uint(&j, "time", s->facts.time_ns / 1000000000);
	json_string(&j, "job", strrchr(s->job.path, '/') + 1);
	json_string(&j, "folder", s->job.path);
	json_string(&j, "command", s->job.command);
	json_int(&j, "ranks", s->job.ranks);
	json_devices(&j, &s->facts);
	phases_json(ps, &j, "phases");
	json_close(&j, '}');
	return fclose(j.out) ? NULL : text;
}

static int add_board(struct save *s)
{
	struct store_ref ref;

	memcpy(ref.b, s->facts.board.bytes, sizeof(ref.b));
	return ctl_ref_none(&s->facts.board) ? 0 : add_part(s, "board", &ref);
}

/* "proxy/R-N/device" … */
static int add_proxies(struct save *s)
{
	for (int i = 0; i < s->facts.proxies; i++) {
		const struct ckpt_proxy *p = &s->facts.proxy[i];
		const struct {
			const char *name;
			const struct ctl_ref *ref;
		} of[] = { { "device", &p->device }, { "observed", &p->observed },
			   { "session", &p->session }, { "channel", &p->channel },
			   { "arena", &p->arena }, { "comms", &p->comms } };

		for (int k = 0; k < 6; k++) {
			struct store_ref ref;
			char name[64];

			if (ctl_ref_none(of[k].ref))
				continue;
			snprintf(name, sizeof(name), "proxy/%d-%d/%s", p->rank, p->serial,
				 of[k].name);
			memcpy(ref.b, of[k].ref->bytes, sizeof(ref.b));
			if (add_part(s, name, &ref))
				return -ENOMEM;
		}
	}
	return 0;
}

/* All but the facts themselves and the history, which come later. */
static int list_parts(struct save *s)
{
	size_t images = images_parts_count(s->parts);
	int err = 0;

	for (size_t i = 0; i < images && !err; i++) {
		struct store_ref ref;
		const char *name = images_parts_get(s->parts, i, &ref);

		err = facts_add_part(&s->facts, name, store_ref_size(&ref));
	}
	for (int i = 0; i < s->n_parts && !err; i++)
		err = facts_add_part(&s->facts, s->part[i].name, store_ref_size(&s->part[i].ref));
	return err;
}

static int add_facts(struct save *s)
{
	struct store_ref ref;
	size_t len;
	char *text = facts_write(&s->facts, &len);
	int err = text ? store_object_whole(s->own, text, len, &ref) : -ENOMEM;

	free(text);
	return err ?: add_part(s, "job", &ref);
}

/* The job's history up to now, unless it has none, or it cannot be read. */
static int add_past(struct save *s, const char *past)
{
	struct store_ref ref;
	size_t len;
	char *all = past ? history_pack(s->job.path, geteuid(), past, &len) : NULL;
	int err = all ? store_object_whole(s->own, all, len, &ref) : 0;

	err = err || !all ? err : add_part(s, PAST_PART, &ref);
	free(all);
	return err;
}

static int publish(struct save *s, const char *json, char *id, struct why *why)
{
	size_t images = images_parts_count(s->parts), n = 0;
	struct store_part *part = calloc(images + s->n_parts, sizeof(*part));
	int err;

	if (!part || !json) {
		free(part);
		return why_set(why, -ENOMEM, "no memory for the manifest");
	}
	for (size_t i = 0; i < images; i++, n++)
		part[n].name = images_parts_get(s->parts, i, &part[n].ref);
	for (int i = 0; i < s->n_parts; i++, n++)
		part[n] = (struct store_part){ s->part[i].name, s->part[i].ref };
	err = stored(store_publish(s->store, part, n, json, id), "publishing", why);
	free(part);
	return err;
}

int save_publish(struct save *s, struct phases *ps, const char *criu, const char *past,
		 char id[STORE_ID], struct why *why)
{
	struct store_writer_stats st;
	char *json;
	int err = add_proxies(s) ?: add_board(s);

	err = stored(err ?: list_parts(s) ?: add_facts(s) ?: add_past(s, past), "the facts of the job", why);
	err = err ?: stored(store_writer_flush(s->own), "writing", why);
	err = err ?: stored(store_writer_flush(s->images), "writing the images", why);
	if (err)
		return err;
	store_writer_stats(s->images, &st);
	s->image_stored = st.stored;
	json = describe(s, ps, criu);
	err = publish(s, json, id, why);
	free(json);
	return err;
}
