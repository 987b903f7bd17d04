// SPDX-License-Identifier: Apache-2.0
/*
 * ptx_corpus.c - compiles every entry of every PTX image in the given files, and counts refusals.
 *
 * usage: ptx_corpus [-n entries per image] [-s skip images] [-m max images] [-v] file...
 * A file is PTX text, or anything with fatbins inside (a library).
 */
#include <errno.h>
#include <fcntl.h>
#include <lz4.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

#include "../../uproxy/softgpu/ptx.h"

static struct {
	char text[120];
	unsigned long n;
} why[400];
static unsigned int nwhy;
static unsigned long done, refused;
static double worst, total;
static char worst_name[200];
static unsigned int per_image = ~0u, max_images = ~0u, skip_images, images;
static bool verbose;

/* "line 12: mma.sync...: not supported" counts as one of its kind. */
static void count(const char *err)
{
	const char *p = strncmp(err, "line ", 5) ? err : strchr(err, ':') + 2;
	unsigned int i;

	for (i = 0; i < nwhy; i++)
		if (!strncmp(why[i].text, p, sizeof(why[i].text) - 1))
			break;
	if (i == sizeof(why) / sizeof(why[0]))
		return;
	if (i == nwhy)
		snprintf(why[nwhy++].text, sizeof(why[i].text), "%.119s", p);
	why[i].n++;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void image(const char *text, size_t len)
{
	struct ptx_source s = { text, len };
	struct ptx_module *m;
	struct ptx_kernel *k;
	unsigned int i, n;
	char err[512];

	if (images++ < skip_images || images > skip_images + max_images)
		return;
	if (ptx_module_parse(&s, 1, &m, err, sizeof(err))) {
		printf("image refused: %s\n", err);
		refused++;
		return;
	}
	n = ptx_module_nentries(m);
	for (i = 0; i < n && i < per_image; i++) {
		double t = now();
		int ret = ptx_compile(m, i, &k, err, sizeof(err));

		t = now() - t;
		total += t;
		if (t > worst) {
			worst = t;
			snprintf(worst_name, sizeof(worst_name), "%s", ptx_module_entry(m, i)->name);
		}
		if (verbose)
			printf("%7.3f %s%s %.100s\n", t, ret ? "REFUSED " : "", ret ? err : "",
			       ptx_module_entry(m, i)->name);
		if (ret) {
			refused++;
			count(err);
		} else {
			done++;
			ptx_kernel_free(k);
		}
	}
	ptx_module_free(m);
}

static void entry(const uint8_t *p, const uint8_t *end)
{
	uint32_t head = *(uint32_t *)(p + 4), packed = *(uint32_t *)(p + 16);
	uint64_t size = *(uint64_t *)(p + 8), flags = *(uint64_t *)(p + 40);
	uint64_t full = *(uint64_t *)(p + 56);
	const uint8_t *data = p + head;
	char *buf;
	size_t n;

	if (data + size > end)
		return;
	if (!(flags & 0xa000)) {
		image((const char *)data, size);
		return;
	}
	buf = malloc(full + 1);
	n = flags & 0x8000 ? ZSTD_decompress(buf, full, data, packed) :
	    (size_t)LZ4_decompress_safe((const char *)data, buf, packed, full);
	if (!(flags & 0x8000) || !ZSTD_isError(n))
		image(buf, n < full ? n : full);
	free(buf);
}

static void scan(const uint8_t *p, size_t len)
{
	const uint8_t *end = p + len, *q;

	for (q = p; q + 16 < end; q += 8) {
		const uint8_t *e, *stop;

		if (*(uint32_t *)q != 0xba55ed50 || *(uint16_t *)(q + 6) != 16)
			continue;
		stop = q + 16 + *(uint64_t *)(q + 8);
		if (stop > end)
			continue;
		for (e = q + 16; e + 64 <= stop;
		     e += *(uint32_t *)(e + 4) + *(uint64_t *)(e + 8)) {
			if (*(uint32_t *)(e + 4) < 64)
				break;
			if (*(uint16_t *)e == 1)
				entry(e, stop);
		}
		q = stop - 8 - ((stop - p) % 8);
	}
}

int main(int argc, char **argv)
{
	unsigned int i;
	int o;

	while ((o = getopt(argc, argv, "n:m:s:v")) > 0) {
		if (o == 'n')
			per_image = atoi(optarg);
		else if (o == 'm')
			max_images = atoi(optarg);
		else if (o == 's')
			skip_images = atoi(optarg);
		else if (o == 'v')
			verbose = true;
		else
			return 2;
	}
	for (; optind < argc; optind++) {
		int fd = open(argv[optind], O_RDONLY);
		struct stat st;
		void *p;

		if (fd < 0 || fstat(fd, &st) || !st.st_size) {
			perror(argv[optind]);
			return 1;
		}
		p = mmap(NULL, st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (p == MAP_FAILED)
			return 1;
		if (memmem(p, st.st_size < 4096 ? st.st_size : 4096, ".version", 8))
			image(p, st.st_size);
		else
			scan(p, st.st_size);
		munmap(p, st.st_size);
		close(fd);
	}
	printf("%lu compiled, %lu refused, %.1f s in all, worst %.2f s %s\n", done, refused, total,
	       worst, worst_name);
	for (i = 0; i < nwhy; i++)
		printf("%6lu %s\n", why[i].n, why[i].text);
	return 0;
}
