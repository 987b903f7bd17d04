/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks.h - what programs of several ranks need: who they are, an id, memory, values, checks
 *
 * A program is one rank of `singvgpu run -n N`. Its first argument is a file by which rank 0 gives the
 * others an id. A check that fails prints its line and ends the rank with status 1.
 */
#ifndef NCCL_RANKS_H
#define NCCL_RANKS_H

#include <cuda_runtime.h>
#include <math.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TYPES	12

static int rank, ranks;
static const char *id_file;

static void fail_at(const char *file, int line, const char *what, long is, long want)
{
	printf("rank %d: %s:%d: %s is %ld, not %ld (%s)\n", rank, file, line, what, is, want,
	       ncclGetLastError(NULL));
	fflush(stdout);
	_exit(1);
}

#define IS(x, want) \
	do { \
		long is_ = (long)(x), want_ = (long)(want); \
		if (is_ != want_) \
			fail_at(__FILE__, __LINE__, #x, is_, want_); \
	} while (0)
#define OK(x) IS(x, 0)

/* Does the last error name this? */
static inline void says(const char *text)
{
	if (strstr(ncclGetLastError(NULL), text))
		return;
	printf("rank %d: the last error is \"%s\", without \"%s\"\n", rank, ncclGetLastError(NULL), text);
	fflush(stdout);
	_exit(1);
}

static inline void begin(int argc, char **argv)
{
	int devices = 0;

	if (argc < 2 || !getenv("RANK"))
		exit(2);
	id_file = argv[1];
	rank = atoi(getenv("RANK"));
	ranks = atoi(getenv("WORLD_SIZE"));
	OK(cudaGetDeviceCount(&devices));
	OK(cudaSetDevice(rank % devices));
}

/* The number-th id of the program: rank 0's, by a file. */
static inline ncclUniqueId shared_id(int number)
{
	char path[4096], fresh[4200];
	ncclUniqueId id;
	FILE *f;

	snprintf(path, sizeof(path), "%s.%d", id_file, number);
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	if (!rank) {
		OK(ncclGetUniqueId(&id));
		f = fopen(fresh, "w");
		IS(f && fwrite(&id, sizeof(id), 1, f) == 1, 1);
		fclose(f);
		OK(rename(fresh, path));
		return id;
	}
	for (int i = 0; !(f = fopen(path, "r")); i++) {
		IS(i < 6000, 1);
		usleep(10000);
	}
	IS(fread(&id, sizeof(id), 1, f), 1);
	fclose(f);
	return id;
}

static inline ncclComm_t world(int number)
{
	ncclComm_t comm = NULL;

	OK(ncclCommInitRank(&comm, ranks, shared_id(number), rank));
	return comm;
}

/* ------------------------------------------------------------------------------ values of any type */

static const unsigned char size_of[TYPES] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };

/* Mantissa bits and bias of the floating-point types. */
static const struct {
	int mantissa, bias;
} shape[TYPES] = {
	{ 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 0 }, { 0, 0 }, { 10, 15 }, { 23, 127 }, { 52, 1023 },
	{ 7, 127 }, { 3, 7 }, { 2, 15 },
};

/* The bits of a number above or equal to 0 that the type has exactly. */
static inline uint64_t bits_of(int type, double v)
{
	double f;
	int e;

	if (!shape[type].bias)
		return (uint64_t)v;
	if (v == 0)
		return 0;
	f = frexp(v, &e) * 2;
	return (uint64_t)(e - 1 + shape[type].bias) << shape[type].mantissa |
	       (uint64_t)ldexp(f - 1, shape[type].mantissa);
}

static inline void put(void *array, size_t i, int type, double v)
{
	uint64_t bits = bits_of(type, v);

	memcpy((char *)array + i * size_of[type], &bits, size_of[type]);
}

static inline uint64_t get(const void *array, size_t i, int type)
{
	uint64_t bits = 0;

	memcpy(&bits, (const char *)array + i * size_of[type], size_of[type]);
	return bits;
}

/* Rank r's element i: small powers of two, whose sums and products all types have. */
static inline double value(int r, size_t i)
{
	return 1 << (i + r) % 2;
}

/* Device memory with n elements of this type, from a function of i; poisoned if that is NULL. */
static inline void *device(int type, size_t n, double (*of)(size_t i, void *arg), void *arg)
{
	void *host = malloc(n * size_of[type] + 1), *p = NULL;

	memset(host, 0xa5, n * size_of[type] + 1);
	for (size_t i = 0; of && i < n; i++)
		put(host, i, type, of(i, arg));
	OK(cudaMalloc(&p, n * size_of[type] + 1));
	OK(cudaMemcpy(p, host, n * size_of[type] + 1, cudaMemcpyHostToDevice));
	OK(cudaDeviceSynchronize());	/* streams that do not block follow nothing */
	free(host);
	return p;
}

static inline double mine(size_t i, void *arg)
{
	(void)arg;
	return value(rank, i);
}

/* The stream's work is done, and n elements at p are what the function says. */
static inline void expect(int line, const void *p, int type, size_t n, cudaStream_t stream,
			  double (*of)(size_t i, void *arg), void *arg)
{
	void *host = malloc(n * size_of[type] + 1);

	OK(cudaMemcpyAsync(host, p, n * size_of[type], cudaMemcpyDeviceToHost, stream));
	OK(cudaStreamSynchronize(stream));
	for (size_t i = 0; i < n; i++)
		if (get(host, i, type) != bits_of(type, of(i, arg))) {
			printf("rank %d: line %d: type %d: element %zu of %zu is %llx, not %llx\n", rank, line,
			       type, i, n, (unsigned long long)get(host, i, type),
			       (unsigned long long)bits_of(type, of(i, arg)));
			fflush(stdout);
			_exit(1);
		}
	free(host);
}

#define EXPECT(...) expect(__LINE__, __VA_ARGS__)

#endif
