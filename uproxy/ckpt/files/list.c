// SPDX-License-Identifier: Apache-2.0
/*
 * list.c - the list of a job's files: in memory, as text, and as the disk has it now
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "files_i.h"

/* ---------------------------------------------------------------------------- in memory */

struct file *files_add(struct files *l, const char *path)
{
	struct file *f;

	if (l->n == l->room) {
		size_t room = l->room ? 2 * l->room : 64;

		f = realloc(l->file, room * sizeof(*f));
		if (!f)
			return NULL;
		l->file = f;
		l->room = room;
	}
	f = &l->file[l->n];
	*f = (struct file){ .path = strdup(path) };
	l->n += !!f->path;
	return f->path ? f : NULL;
}

void files_drop(struct file *f)
{
	for (size_t i = 0; i < f->attrs; i++) {
		free(f->attr[i].name);
		free(f->attr[i].value);
	}
	free(f->attr);
	free(f->target);
	*f = (struct file){ .path = f->path };
}

void files_free(struct files *l)
{
	for (size_t i = 0; i < l->n; i++) {
		files_drop(&l->file[i]);
		free(l->file[i].path);
	}
	free(l->file);
	*l = (struct files){ .n = 0 };
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct file *)a)->path, ((const struct file *)b)->path);
}

void files_sort(struct files *l)
{
	size_t to = 0;

	if (l->n)
		qsort(l->file, l->n, sizeof(*l->file), by_path);
	for (size_t i = 0; i < l->n; i++) {
		struct file *f = &l->file[i], *last = to ? &l->file[to - 1] : NULL;

		if (!last || strcmp(last->path, f->path)) {
			l->file[to++] = *f;
			continue;
		}
		if (strchr("cD", f->kind) || last->kind == 'p')	/* another source knows more */
			last->kind = f->kind;
		files_drop(f);
		free(f->path);
	}
	l->n = to;
}

struct file *files_find(const struct files *l, const char *path)
{
	struct file key = { .path = (char *)path };

	return l->n ? bsearch(&key, l->file, l->n, sizeof(key), by_path) : NULL;
}

size_t files_folder(const char *path, size_t len)
{
	while (len && path[len - 1] != '/')
		len--;
	return len ? len - 1 : 0;
}

bool files_is_system(const char *path)
{
	static const char *const roots[] = { "/proc", "/sys", "/dev" };
	static const char shm[] = "/dev/shm/";

	for (int i = 0; i < 3; i++) {
		size_t n = strlen(roots[i]);

		if (!strncmp(path, roots[i], n) && (!path[n] || path[n] == '/'))
			return strncmp(path, shm, strlen(shm));
	}
	return false;
}

int files_open_folder(const char *path)
{
	struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
				.resolve = RESOLVE_NO_SYMLINKS };
	int fd = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));

	return fd < 0 ? -errno : fd;
}

int files_open_above(const char *path, const char **name)
{
	size_t n = files_folder(path, strlen(path));
	char above[PATH_MAX];

	if (strlen(path) >= sizeof(above))
		return -ENAMETOOLONG;
	memcpy(above, path, n);
	above[n] = '\0';
	*name = path[n + 1] ? path + n + 1 : ".";
	return files_open_folder(n ? above : "/");
}

void files_boot(char boot[64])
{
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (!f || fscanf(f, "%63s", boot) != 1)
		strcpy(boot, "unknown");
	if (f)
		fclose(f);
}

void files_name(char name[FILES_NAME], uint64_t hash)
{
	snprintf(name, FILES_NAME, "files/%016" PRIx64, hash);
}

/* ---------------------------------------------------------------------------------- text */

static void put_escaped(FILE *out, const char *s)
{
	putc(' ', out);
	for (; *s; s++) {
		unsigned char c = *s;

		if (c <= 0x20 || c == '%' || c == 0x7f)
			fprintf(out, "%%%02X", c);
		else
			putc(c, out);
	}
}

static void write_file(const struct file *f, FILE *out)
{
	putc(f->kind, out);
	if (f->kind != 'a')
		fprintf(out, " %o %u %u %" PRId64, f->mode & 01777, f->uid, f->gid, f->mtime);
	put_escaped(out, f->path);
	if (f->kind == 'l' || f->kind == 'h')
		put_escaped(out, f->target);
	if (f->kind == 'r' || f->kind == 'c')
		fprintf(out, " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %d %016" PRIx64,
			f->size, f->dev, f->ino, f->ctime, f->trust, f->hash);
	putc('\n', out);
	for (size_t i = 0; i < f->attrs; i++) {
		putc('x', out);
		put_escaped(out, f->attr[i].name);
		putc(' ', out);
		for (size_t j = 0; j < f->attr[i].len; j++)
			fprintf(out, "%02x", f->attr[i].value[j]);
		putc('\n', out);
	}
}

int files_write(const struct files *l, FILE *out)
{
	fprintf(out, "singvgpu-files %u\nboot %s %" PRId64 "\nlog %s\n", FILES_VERSION, l->boot, l->taken,
		*l->log ? l->log : "-");
	for (size_t i = 0; i < l->n; i++)
		write_file(&l->file[i], out);
	return ferror(out) ? -ENOMEM : 0;
}

#define KINDS "apdDlfsrhcx"

/* Cuts off and returns the next field of a line; NULL: none. */
static char *field(char **at)
{
	char *f = *at;

	if (!f || !*f)
		return NULL;
	*at = strchr(f, ' ');
	if (*at)
		*(*at)++ = '\0';
	return f;
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ?
		(c | 32) - 'a' + 10 : -1;
}

/* The byte of two hexadecimal digits; -1: they are none. */
static int byte_at(const char *s)
{
	int a = hex(s[0]), b = a < 0 ? -1 : hex(s[1]);

	return b < 0 ? -1 : a * 16 + b;
}

static char *text_field(char **at)
{
	char *f = field(at), *to = f;

	for (char *from = f; from && *from; from++) {
		int c = *from == '%' ? byte_at(from + 1) : (unsigned char)*from;

		if (c <= 0)
			return NULL;
		from += *from == '%' ? 2 : 0;
		*to++ = c;
	}
	if (to)
		*to = '\0';
	return f && *f ? f : NULL;
}

static bool number(char **at, int base, uint64_t *v)
{
	char *f = field(at), *end;

	if (!f)
		return false;
	errno = 0;
	*v = strtoull(f, &end, base);	/* also of negative times */
	return !*end && !errno;
}

static int parse_attr(struct file *f, char *line)
{
	char *name = text_field(&line), *value = field(&line);
	size_t len = value ? strlen(value) : 0;
	struct files_attr *more;

	if (!f || !name || (line && *line) || len % 2)
		return -EPROTO;
	more = realloc(f->attr, (f->attrs + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	f->attr = more;
	more += f->attrs++;
	*more = (struct files_attr){ strdup(name), malloc(len / 2 + 1), len / 2 };
	if (!more->name || !more->value)
		return -ENOMEM;
	for (size_t i = 0; i < len / 2; i++) {
		int c = byte_at(value + 2 * i);

		if (c < 0)
			return -EPROTO;
		more->value[i] = c;
	}
	return 0;
}

static int parse_file(struct files *l, char kind, char *line)
{
	uint64_t v[4] = { 0 }, w[6] = { 0 };
	struct file *f;
	char *path;

	for (int i = 0; kind != 'a' && i < 4; i++)
		if (!number(&line, i ? 10 : 8, &v[i]) || (i < 3 && v[i] >= UINT32_MAX))
			return -EPROTO;
	path = text_field(&line);
	if (!path || (l->n && strcmp(l->file[l->n - 1].path, path) >= 0))
		return -EPROTO;
	f = files_add(l, path);
	if (!f)
		return -ENOMEM;
	f->kind = kind;
	f->mode = v[0];
	f->uid = v[1];
	f->gid = v[2];
	f->mtime = v[3];
	if (kind == 'l' || kind == 'h') {
		path = text_field(&line);
		f->target = path ? strdup(path) : NULL;
		if (!f->target)
			return -EPROTO;
	}
	for (int i = 0; (kind == 'r' || kind == 'c') && i < 6; i++)
		if (!number(&line, i == 5 ? 16 : 10, &w[i]))
			return -EPROTO;
	f->size = w[0];
	f->dev = w[1];
	f->ino = w[2];
	f->ctime = w[3];
	f->trust = w[4];
	f->hash = w[5];
	return line ? -EPROTO : 0;
}

static int parse_line(struct files *l, int nr, char *line)
{
	if (nr == 0)
		return sscanf(line, "singvgpu-files %u", &l->version) != 1 ? -EPROTO :
			l->version != FILES_VERSION ? -EPROTONOSUPPORT : 0;
	if (nr == 1)
		return sscanf(line, "boot %63s %" SCNd64, l->boot, &l->taken) == 2 ? 0 : -EPROTO;
	if (nr == 2)
		return sscanf(line, "log %31[0-9a-f-]", l->log) == 1 ? 0 : -EPROTO;
	if (!line[0] || line[1] != ' ' || !strchr(KINDS, line[0]))
		return -EPROTO;
	if (line[0] == 'x')
		return parse_attr(l->n ? &l->file[l->n - 1] : NULL, line + 2);
	return parse_file(l, line[0], line + 2);
}

int files_parse(struct files *l, char *text, struct why *why)
{
	int err = 0, nr = 0;
	char kind = '\0';

	*l = (struct files){ .n = 0 };
	while (*text && !err) {
		char *end = strchr(text, '\n');

		if (!end) {
			err = -EPROTO;
			break;
		}
		*end = '\0';
		kind = *text;
		err = parse_line(l, nr++, text);
		text = end + 1;
	}
	if (!err && nr < 3)
		err = -EPROTO;
	if (err == -EPROTONOSUPPORT)
		why_set(why, err, "it is of version %u, this program reads version %u", l->version,
			FILES_VERSION);
	else if (err == -EPROTO && nr > 3 && kind && !strchr(KINDS, kind))
		why_set(why, err, "line %d is of kind '%c', which is never put back", nr, kind);
	else if (err)
		why_set(why, err, "line %d cannot be understood", nr);
	if (err)
		files_free(l);
	return err;
}

/* -------------------------------------------------------------------------- on the disk */

/* The path of an open file, for calls that take no descriptor. */
static void open_path(char path[40], int fd)
{
	snprintf(path, 40, "/proc/self/fd/%d", fd);
}

/* Is the attribute saved? Those that make a program privileged (security.capability) are not. */
static bool is_kept(const char *name)
{
	return !strncmp(name, "user.", 5) || !strncmp(name, "system.posix_acl_", 17);
}

static int look_attrs(struct file *f, int fd)
{
	struct files_attr *a;
	ssize_t n, len;
	char *names, path[40];

	open_path(path, fd);
	n = listxattr(path, NULL, 0);
	if (n <= 0)
		return 0;	/* none, or a file system without any */
	names = malloc(n);
	n = names ? listxattr(path, names, n) : 0;
	for (char *s = names; s < names + n; s += strlen(s) + 1) {
		len = is_kept(s) ? getxattr(path, s, NULL, 0) : -1;
		if (len < 0)
			continue;
		a = realloc(f->attr, (f->attrs + 1) * sizeof(*a));
		if (!a)
			break;
		f->attr = a;
		a += f->attrs++;
		*a = (struct files_attr){ strdup(s), malloc(len + 1), 0 };
		len = a->value ? getxattr(path, s, a->value, len) : -1;
		a->len = len < 0 ? 0 : len;
	}
	free(names);
	return names ? 0 : -ENOMEM;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct files_attr *)a)->name, ((const struct files_attr *)b)->name);
}

bool files_same_attrs(const struct file *a, const struct file *b)
{
	bool same = a->attrs == b->attrs;

	for (size_t i = 0; same && i < a->attrs; i++)
		same = !strcmp(a->attr[i].name, b->attr[i].name) &&
		       a->attr[i].len == b->attr[i].len &&
		       !memcmp(a->attr[i].value, b->attr[i].value, a->attr[i].len);
	return same;
}

static int look_open(struct file *f, int fd)
{
	char target[PATH_MAX + 1];
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st))
		return -errno;
	f->kind = S_ISREG(st.st_mode) ? 'r' : S_ISDIR(st.st_mode) ? 'd' : S_ISLNK(st.st_mode) ?
		'l' : S_ISFIFO(st.st_mode) ? 'f' : 's';
	f->mode = st.st_mode & 07777;
	f->uid = st.st_uid;
	f->gid = st.st_gid;
	f->mtime = files_ns(st.st_mtim);
	f->ctime = files_ns(st.st_ctim);
	f->size = st.st_size;
	f->dev = st.st_dev;
	f->ino = st.st_ino;
	f->links = st.st_nlink;
	if (f->kind == 'l') {
		n = readlinkat(fd, "", target, sizeof(target) - 1);
		if (n < 0)
			return -errno;
		target[n] = '\0';
		f->target = strdup(target);
		return f->target ? 0 : -ENOMEM;
	}
	n = look_attrs(f, fd);
	if (f->attrs > 1)
		qsort(f->attr, f->attrs, sizeof(*f->attr), by_name);
	return n;
}

int files_look(struct file *f)
{
	const char *name;
	int dir, fd, err;

	files_drop(f);
	f->kind = 'a';
	dir = files_open_above(f->path, &name);
	fd = dir < 0 ? dir : openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	err = dir < 0 ? dir : fd < 0 ? -errno : look_open(f, fd);
	if (fd >= 0)
		close(fd);
	if (dir >= 0)
		close(dir);
	/* ELOOP: a folder above is a link now, so nothing is at this path. */
	return err == -ENOENT || err == -ENOTDIR || err == -ELOOP ? 0 : err;
}

/* ------------------------------------------------------------------------------- reading */

int files_read(const char *path, int flags, const struct store *s, char **text, size_t *len)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags), err = 0;
	struct stat st;
	ssize_t n;

	*text = NULL;
	*len = 0;
	if (fd < 0 || fstat(fd, &st))
		err = -errno;
	else if (!S_ISREG(st.st_mode))
		err = -EINVAL;
	else
		err = s ? store_trusts(s, fd, path) : 0;
	if (!err && (uint64_t)st.st_size > FILES_TEXT_MAX)
		err = -EFBIG;
	if (!err) {
		*text = malloc(st.st_size + 1);
		err = *text ? 0 : -ENOMEM;
	}
	while (!err && *len < (size_t)st.st_size) {
		n = pread(fd, *text + *len, st.st_size - *len, *len);
		if (n < 0)
			err = -errno;
		if (n <= 0)
			break;
		*len += n;
	}
	if (fd >= 0)
		close(fd);
	if (err)
		free(*text);
	else
		(*text)[*len] = '\0';
	return err;
}

int files_read_object(struct store *s, const struct store_ref *ref, char **text, size_t *len)
{
	struct store_reader *r;
	int err = store_object_open(s, ref, &r);
	ssize_t n;

	if (err)
		return err;
	*len = store_size(r);
	*text = *len > FILES_TEXT_MAX ? NULL : malloc(*len + 1);
	n = *len > FILES_TEXT_MAX ? -EFBIG : *text ? store_read(r, 0, *text, *len) : -ENOMEM;
	store_reader_close(r);
	if (n < 0 || (size_t)n != *len) {
		free(*text);
		return n < 0 ? n : -EBADMSG;
	}
	(*text)[*len] = '\0';
	return 0;
}

/* ------------------------------------------------------------------------------ records */

int files_records(const char *log, size_t len, int (*each)(void *arg, char kind, const char *path),
		  void *arg)
{
	int err = 0;

	/* Bytes behind the last NUL are an incomplete record. */
	while (len && log[len - 1])
		len--;
	for (size_t at = 0; at < len && !err; at += strlen(log + at) + 1)
		if (log[at] && strchr("CETL", log[at]) && log[at + 1] == '/')
			err = each(arg, log[at], log + at + 1);
	return err;
}
