// SPDX-License-Identifier: Apache-2.0
/*
 * ckpt_dumps.c - two dumps that differ in some pages, and the count of differing bytes
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"

#define PAGE		4096
#define CHANGED_PERCENT	3

static uint64_t random_next(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

/* Four numbers between -2 and 2, most of them small: their exponents are few. */
static void weights(float *w, uint64_t *state)
{
	uint64_t r = random_next(state), q = random_next(state);

	for (int i = 0; i < 4; i++)
		w[i] = ((int16_t)(r >> (16 * i)) / 32768.0f) * ((uint16_t)(q >> (16 * i)) / 32768.0f);
}

static void fill_page(uint8_t *page, uint64_t number, unsigned int version)
{
	static const char *const word[] = { "layer", "norm", "weight", "bias", "attention", "grad" };
	uint64_t state = number * 2 + version;

	switch (number % 8) {
	case 6:		/* pointers */
		for (int i = 0; i < PAGE / 8; i++)
			((uint64_t *)page)[i] = 0x7f0000000000 + (random_next(&state) & 0xfffffff0);
		break;
	case 7:		/* text */
		for (int i = 0; i < PAGE / 16; i++) {
			char line[32];

			snprintf(line, sizeof(line), "%-9.9s%06x\n",
				 word[random_next(&state) % 6], (int)random_next(&state) & 0xffffff);
			memcpy(page + 16 * i, line, 16);
		}
		break;
	default:
		for (int i = 0; i < PAGE / 16; i++)
			weights((float *)page + 4 * i, &state);
	}
}

static int is_changed(uint64_t number)
{
	uint64_t state = ~number;

	return random_next(&state) % 1000 < CHANGED_PERCENT * 10;
}

static void dump_write(const struct bench *b, const char *path, unsigned int version)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	uint8_t *buf = malloc(1 << 20);

	if (fd < 0 || !buf)
		die("%s: %s", path, strerror(errno));
	for (uint64_t at = 0; at < b->size; at += 1 << 20) {
		for (uint64_t i = 0; i < (1 << 20) / PAGE; i++) {
			uint64_t number = at / PAGE + i;

			fill_page(buf + i * PAGE, number, is_changed(number) ? version : 0);
		}
		if (pwrite(fd, buf, 1 << 20, at) != 1 << 20)
			die("%s: %s", path, strerror(errno ?: ENOSPC));
	}
	if (fsync(fd) || close(fd))
		die("%s: %s", path, strerror(errno));
	free(buf);
}

static void *map_file(const char *path, uint64_t *size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	void *p;

	if (fd < 0 || fstat(fd, &st))
		die("%s: %s", path, strerror(errno));
	p = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED)
		die("%s: %s", path, strerror(errno));
	close(fd);
	*size = st.st_size;
	return p;
}

/* Bytes of the pages (4 KiB) in which two files of one size differ. */
static uint64_t dumps_differ(const char *one, const char *two)
{
	uint64_t size[2], changed = 0;
	uint8_t *a = map_file(one, &size[0]), *b = map_file(two, &size[1]);

	if (size[0] != size[1] || size[0] % PAGE)
		die("%s and %s have different sizes", one, two);
	for (uint64_t at = 0; at < size[0]; at += PAGE)
		changed += memcmp(a + at, b + at, PAGE) ? PAGE : 0;
	munmap(a, size[0]);
	munmap(b, size[1]);
	return changed;
}

void dumps_make(const struct bench *b, struct dumps *d)
{
	for (unsigned int i = 0; i < 2; i++) {
		snprintf(d->path[i], sizeof(d->path[i]), "%s/dump%u", b->dir, i + 1);
		dump_write(b, d->path[i], i);
	}
	d->changed = dumps_differ(d->path[0], d->path[1]);
}
