// SPDX-License-Identifier: Apache-2.0
/*
 * jitlink.c - nvJitLink for the soft device: links as the library does, and returns PTX
 *
 * The library itself links first, for the newest architecture that it knows if it does not know
 * the soft device's, so that its results and logs report errors as usual. The result that
 * replaces its machine code is made of the same inputs: intermediate code is linked once more by
 * the library, into PTX; PTX is taken as it is; several texts become a linked image (fatbin.h),
 * as from cuLinkComplete, whose parts the driver links when it loads the image. Host objects and
 * archives contribute their fatbins. Inputs that are machine code alone are refused.
 */
#include "rtc_i.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {					/* nvJitLinkInputType */
	INPUT_CUBIN = 1, INPUT_PTX, INPUT_LTOIR, INPUT_FATBIN, INPUT_OBJECT, INPUT_LIBRARY,
	INPUT_INDEX, INPUT_ANY = 10,
};

#define LTOIR_MAGIC 0x7f4e43edu
#define ELF_MAGIC 0x464c457fu
#define EM_CUDA 190

struct input {
	struct input *next;
	int type;
	char *name;			/* as passed; may be NULL */
	size_t len;
	uint8_t data[];			/* and a NUL */
};

/* A link for the soft device, from Create to Destroy. */
struct link {
	struct link *next;
	void *handle;
	bool lto, failed;
	char **opt;			/* the options passed to the library */
	uint32_t n;
	struct input *inputs, **last;
	uint8_t *image;			/* the result, or NULL */
	size_t len;
	char error[256];		/* ours, after the library's */
};

static struct link *links;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct link *find_link(void *handle, bool take)
{
	struct link *l = NULL;

	pthread_mutex_lock(&lock);
	for (struct link **at = &links; *at; at = &(*at)->next) {
		if ((*at)->handle != handle)
			continue;
		l = *at;
		if (take)
			*at = l->next;
		break;
	}
	pthread_mutex_unlock(&lock);
	return l;
}

static void free_link(struct link *l)
{
	if (!l)
		return;
	for (struct input *in = l->inputs, *next; in; in = next) {
		next = in->next;
		free(in->name);
		free(in);
	}
	for (uint32_t i = 0; l->opt && i < l->n; i++)
		free(l->opt[i]);
	free(l->opt);
	free(l->image);
	free(l);
}

/* --------------------------------------------------------------- which architecture */

/* Links a kernel, since some versions accept any architecture at creation and fail later. */
static bool accepts(struct rtc_lib *lib, int arch)
{
	static const char ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
		".visible .entry nothing()\n{\nret;\n}\n";
	char text[24];
	const char *opt[] = { text };
	void *h = NULL;
	int rc;

	snprintf(text, sizeof(text), "-arch=sm_%d", arch);
	rc = lib->nvJitLinkCreate(&h, 1, opt);
	rc = rc ?: lib->nvJitLinkAddData(h, INPUT_PTX, ptx, sizeof(ptx), "nothing");
	rc = rc ?: lib->nvJitLinkComplete(h);
	if (h)
		lib->nvJitLinkDestroy(&h);
	return !rc;
}

static struct link *new_link(uint32_t n, const char **opt)
{
	struct link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->last = &l->inputs;
	l->opt = calloc(n, sizeof(*l->opt));
	for (; l->opt && l->n < n; l->n++) {
		l->opt[l->n] = strdup(opt[l->n]);
		if (!l->opt[l->n])
			break;
		l->lto |= !strcmp(opt[l->n], "-lto");
	}
	if (l->n == n)
		return l;
	free_link(l);
	return NULL;
}

int rtc_nvJitLinkCreate(struct rtc_lib *lib, void **h, uint32_t n, const char **opt)
{
	int arch = 0, own = rtc_own(false), use, rc = -1;
	struct link *l;
	char text[32];
	bool real = false, ptx = false;
	uint32_t at = 0;

	for (uint32_t i = 0; h && opt && i < n && opt[i]; i++) {
		if (!strncmp(opt[i], "-arch=", 6)) {
			arch = rtc_arch(opt[i] + 6, &real);
			at = i;
		}
		ptx |= !strcmp(opt[i], "-ptx");
	}
	if (!arch || !own) {
		rc = lib->nvJitLinkCreate(h, n, opt);
		if (!rc || !arch || rtc_own(true) != arch)
			return rc;
		own = arch;
	}
	use = arch == own ? rtc_newest(lib, own, accepts) : arch;
	if (!use)
		return rc < 0 ? lib->nvJitLinkCreate(h, n, opt) : rc;
	if (rc > 0 && *h)
		lib->nvJitLinkDestroy(h);
	l = new_link(n, opt);
	if (!l)
		return LINK_INTERNAL;
	if (use != arch) {
		snprintf(text, sizeof(text), "-arch=%s%d", real ? "sm_" : "compute_", use);
		free(l->opt[at]);
		l->opt[at] = strdup(text);
		rtc_log("nvJitLink: compute capability %d.%d is linked for as %d.%d", arch / 10, arch % 10,
			use / 10, use % 10);
	}
	rc = l->opt[at] ? lib->nvJitLinkCreate(h, n, (const char **)l->opt) : LINK_INTERNAL;
	if (rc || !real || ptx) {	/* the program wants PTX anyway */
		free_link(l);
		return rc;
	}
	l->handle = *h;
	free_link(find_link(*h, true));
	pthread_mutex_lock(&lock);
	l->next = links;
	links = l;
	pthread_mutex_unlock(&lock);
	return rc;
}

int rtc_nvJitLinkDestroy(struct rtc_lib *lib, void **h)
{
	if (h)
		free_link(find_link(*h, true));
	return lib->nvJitLinkDestroy(h);
}

/* -------------------------------------------------------------------------- inputs */

static uint32_t magic_of(const uint8_t *data, size_t n)
{
	uint32_t magic = 0;

	memcpy(&magic, data, n < 4 ? n : 4);
	return magic;
}

static bool is_text(const uint8_t *data, size_t n)
{
	for (size_t i = 0; i < n && i < 64 && data[i]; i++)
		if (data[i] < ' ' && !strchr("\t\n\v\f\r", data[i]))
			return false;
	return n && data[0] && memcmp(data, "!<arch>", n < 7 ? n : 7);
}

static bool is_host(const uint8_t *data, size_t n)
{
	uint16_t machine = EM_CUDA;

	if (magic_of(data, n) == ELF_MAGIC && n >= 20)
		memcpy(&machine, data + 18, sizeof(machine));
	return machine != EM_CUDA || (n >= 8 && !memcmp(data, "!<arch>\n", 8));
}

static bool is_image(const uint8_t *data, size_t n)
{
	struct fatbin f;

	return !fatbin_head(data, n, &f) && f.version == FATBIN_LINKED && f.header == sizeof(f);
}

/* The data of the next entry of a fatbin or linked image; NULL at the end. */
static const uint8_t *next_entry(const uint8_t *data, size_t n, const uint8_t **at,
				 struct fatbin_entry *e)
{
	struct fatbin f;

	if (!*at) {
		if (n < sizeof(f))
			return NULL;
		memcpy(&f, data, sizeof(f));
		if (f.header > n)
			return NULL;
		*at = data + f.header;
	}
	return fatbin_next(at, data + n, e, &data) > 0 ? data : NULL;
}

static bool has_entry(const uint8_t *data, size_t n, int kind)
{
	const uint8_t *at = NULL;
	struct fatbin_entry e;

	while (next_entry(data, n, &at, &e))
		if (e.kind == kind)
			return true;
	return false;
}

static int keep(struct link *l, int type, const void *data, size_t n, const char *name)
{
	struct input *in = malloc(sizeof(*in) + n + 1);

	if (!in)
		return LINK_INTERNAL;
	*in = (struct input){ .type = type, .len = n, .name = name ? strdup(name) : NULL };
	memcpy(in->data, data, n);
	in->data[n] = 0;
	*l->last = in;
	l->last = &in->next;
	return 0;
}

struct host {
	struct link *l;
	const char *name;
	bool code, used;
};

static int keep_inner(void *ctx, const uint8_t *fatbin, size_t n)
{
	struct host *h = ctx;

	if (!has_entry(fatbin, n, FATBIN_KIND_PTX) && !(h->l->lto && has_entry(fatbin, n, FATBIN_KIND_LTOIR))) {
		h->code = true;
		return 0;
	}
	h->used = true;
	return keep(h->l, INPUT_FATBIN, fatbin, n, h->name);
}

/* Keeps the input; of a host object or archive, its fatbins that have more than machine code. */
static int add_input(struct rtc_lib *lib, struct link *l, int type, const void *data, size_t n,
		     const char *name)
{
	bool host = type == INPUT_OBJECT || type == INPUT_LIBRARY || type == INPUT_ANY;
	struct host h = { .l = l, .name = name };
	int rc = lib->nvJitLinkAddData(l->handle, type, data, n, name);

	if (!rc && host)
		rc = rtc_fatbins(data, n, keep_inner, &h);
	return rc || h.used || (host && !h.code && is_host(data, n)) ? rc :
	       keep(l, type, data, n, name);
}

int rtc_nvJitLinkAddData(struct rtc_lib *lib, void *h, int type, const void *data, size_t n, const char *name)
{
	struct link *l = data && n ? find_link(h, false) : NULL;
	bool code = type == INPUT_CUBIN || type == INPUT_OBJECT || type == INPUT_ANY ||
		    type == INPUT_FATBIN;
	const uint8_t *part, *at = NULL;
	struct fatbin_entry e;
	int rc = 0;

	if (!l)
		return lib->nvJitLinkAddData(h, type, data, n, name);
	/* the program passes back a result that replaced machine code */
	if (code && is_text(data, n))
		return add_input(lib, l, INPUT_PTX, data, n, name);
	if (!code || !is_image(data, n))
		return add_input(lib, l, type, data, n, name);
	while (!rc && (part = next_entry(data, n, &at, &e)))
		rc = add_input(
			lib, l, e.kind == FATBIN_KIND_FATBIN ? INPUT_FATBIN : INPUT_PTX, part,
			e.kind == FATBIN_KIND_FATBIN ? e.padded :
						       strnlen((const char *)part, e.padded) + 1,
			name);
	return rc;
}

int rtc_nvJitLinkAddFile(struct rtc_lib *lib, void *h, int type, const char *path)
{
	struct link *l = path ? find_link(h, false) : NULL;
	int fd = l ? open(path, O_RDONLY | O_CLOEXEC) : -1, rc;
	uint8_t *data = NULL;
	struct stat st;
	size_t got = 0;
	ssize_t r = 1;

	if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size)
		data = malloc(st.st_size);
	while (data && r > 0 && got < (size_t)st.st_size) {
		r = read(fd, data + got, st.st_size - got);
		got += r > 0 ? r : 0;
	}
	if (fd >= 0)
		close(fd);
	/* the library reports what is wrong with a file */
	rc = data && got == (size_t)st.st_size ? rtc_nvJitLinkAddData(lib, h, type, data, got, path) :
						 lib->nvJitLinkAddFile(h, type, path);
	free(data);
	return rc;
}

/* -------------------------------------------------------------------------- result */

enum part { PART_PTX, PART_FATBIN, PART_LTOIR, PART_CODE };

/* How an input enters the result. */
static enum part part_of(const struct link *l, const struct input *in)
{
	uint32_t magic = magic_of(in->data, in->len);

	if (in->type == INPUT_PTX)
		return PART_PTX;
	if (in->type == INPUT_LTOIR || magic == LTOIR_MAGIC)
		return PART_LTOIR;
	if (magic != FATBIN_MAGIC)
		return PART_CODE;
	if (l->lto && has_entry(in->data, in->len, FATBIN_KIND_LTOIR))
		return PART_LTOIR;
	return has_entry(in->data, in->len, FATBIN_KIND_PTX) ? PART_FATBIN : PART_CODE;
}

static int fail(struct link *l, int rc, const char *why)
{
	snprintf(l->error, sizeof(l->error), "ERROR: %s\n", why);
	rtc_log("nvJitLink: %s", why);
	l->failed = true;
	return rc;
}

/* Links the intermediate code of all inputs into PTX text, which the caller frees. */
static int link_ltoir(struct rtc_lib *lib, struct link *l, char **out, size_t *len)
{
	const char **opt = malloc((l->n + 1) * sizeof(*opt));
	void *h = NULL;
	int rc;

	*out = NULL;
	if (!opt)
		return fail(l, LINK_INTERNAL, "out of memory");
	memcpy(opt, l->opt, l->n * sizeof(*opt));
	opt[l->n] = "-ptx";
	rc = lib->nvJitLinkCreate(&h, l->n + 1, opt);
	free(opt);
	for (struct input *in = l->inputs; in && !rc; in = in->next)
		if (part_of(l, in) == PART_LTOIR)
			rc = lib->nvJitLinkAddData(h, in->type, in->data, in->len, in->name);
	rc = rc ?: lib->nvJitLinkComplete(h);
	rc = rc ?: lib->nvJitLinkGetLinkedPtxSize(h, len);
	*out = rc ? NULL : calloc(1, *len + 1);
	if (!rc && !*out)
		rc = LINK_INTERNAL;
	rc = rc ?: lib->nvJitLinkGetLinkedPtx(h, *out);
	if (h)
		lib->nvJitLinkDestroy(&h);
	return rc ? fail(l, rc, "the intermediate code could not be linked into PTX") : 0;
}

/* Appends an entry (to NULL: does not); returns its size in bytes. */
static size_t put_entry(uint8_t *to, uint16_t kind, const void *data, size_t len)
{
	struct fatbin_entry e = { .kind = kind, .header = sizeof(e), .padded = (len + 8) & ~(size_t)7 };

	if (to) {
		memcpy(to, &e, sizeof(e));
		memcpy(to + sizeof(e), data, len);
	}
	return sizeof(e) + e.padded;
}

/* Writes all entries (to NULL: none); returns their size in bytes. */
static size_t put_all(uint8_t *to, const struct link *l, const char *ptx)
{
	size_t n = ptx ? put_entry(to, FATBIN_KIND_PTX, ptx, strlen(ptx)) : 0;

	for (struct input *in = l->inputs; in; in = in->next) {
		enum part part = part_of(l, in);
		size_t len = part == PART_PTX ? strlen((char *)in->data) : in->len;

		if (part != PART_LTOIR)
			n += put_entry(to ? to + n : NULL,
				       part == PART_PTX ? FATBIN_KIND_PTX : FATBIN_KIND_FATBIN,
				       in->data, len);
	}
	return n;
}

static int make_image(struct link *l, const char *ptx)
{
	struct input *only = l->inputs && !l->inputs->next ? l->inputs : NULL;
	struct fatbin f = { FATBIN_MAGIC, FATBIN_LINKED, sizeof(f), 0 };
	bool text = ptx != NULL;

	for (struct input *in = l->inputs; in; in = in->next)
		text &= part_of(l, in) == PART_LTOIR;
	if (!text && only && part_of(l, only) == PART_PTX) {
		ptx = (char *)only->data;
		text = true;
	}
	if (text) {
		l->image = (uint8_t *)strdup(ptx);
		l->len = strlen(ptx) + 1;
	} else {
		f.size = put_all(NULL, l, ptx);
		l->len = sizeof(f) + f.size;
		l->image = calloc(1, l->len);
		if (l->image) {
			memcpy(l->image, &f, sizeof(f));
			put_all(l->image + sizeof(f), l, ptx);
		}
	}
	return l->image ? 0 : fail(l, LINK_INTERNAL, "out of memory");
}

int rtc_nvJitLinkComplete(struct rtc_lib *lib, void *h)
{
	struct link *l = find_link(h, false);
	int rc = lib->nvJitLinkComplete(h);
	bool lto = false;
	char *ptx = NULL;
	size_t n;

	if (rc || !l || l->image)
		return rc;
	for (struct input *in = l->inputs; in; in = in->next) {
		enum part part = part_of(l, in);

		if (part == PART_CODE)
			return fail(l, LINK_UNRECOGNIZED_INPUT,
				    "an input has machine code alone, and the device runs PTX");
		lto |= part == PART_LTOIR;
	}
	rc = lto ? link_ltoir(lib, l, &ptx, &n) : 0;
	rc = rc ?: make_image(l, ptx);
	free(ptx);
	return rc;
}

int rtc_nvJitLinkGetLinkedCubinSize(struct rtc_lib *lib, void *h, size_t *n)
{
	struct link *l = n ? find_link(h, false) : NULL;

	if (l && l->failed)
		return LINK_INTERNAL;
	if (!l || !l->image)
		return lib->nvJitLinkGetLinkedCubinSize(h, n);
	*n = l->len;
	return 0;
}

int rtc_nvJitLinkGetLinkedCubin(struct rtc_lib *lib, void *h, void *to)
{
	struct link *l = to ? find_link(h, false) : NULL;

	if (l && l->failed)
		return LINK_INTERNAL;
	if (!l || !l->image)
		return lib->nvJitLinkGetLinkedCubin(h, to);
	memcpy(to, l->image, l->len);
	return 0;
}

/* A log's size includes its NUL; that of an empty log is 0. */
int rtc_nvJitLinkGetErrorLogSize(struct rtc_lib *lib, void *h, size_t *n)
{
	struct link *l = n ? find_link(h, false) : NULL;
	int rc = lib->nvJitLinkGetErrorLogSize(h, n);

	if (!rc && l && l->error[0])
		*n += strlen(l->error) + 1;
	return rc;
}

int rtc_nvJitLinkGetErrorLog(struct rtc_lib *lib, void *h, char *to)
{
	struct link *l = to ? find_link(h, false) : NULL;
	size_t n = 0;
	int rc;

	if (!l || !l->error[0])
		return lib->nvJitLinkGetErrorLog(h, to);
	rc = lib->nvJitLinkGetErrorLogSize(h, &n);
	if (!rc && n)
		rc = lib->nvJitLinkGetErrorLog(h, to);
	if (!rc)
		strcpy(to + strnlen(to, n), l->error);
	return rc;
}
