/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile.c - SINGVGPU_SOFT_PROFILE: the soft device with the limits and habits of a real one
 *
 * Read once, by cuInit: NAME[,OPTION...]. Without it the profile is the soft device's own. A name
 * or an option that is not known fails cuInit: a test would otherwise run on another device.
 *
 * h100 is an H100 SXM. Its numbers are those of
 *   - the CUDA C++ Programming Guide, 13.0: technical specifications per compute capability (9.0),
 *     memory synchronisation domains (4 on Hopper), thread block clusters (8 blocks are portable,
 *     Hopper has up to 16)
 *   - printed outputs of deviceQuery for "NVIDIA H100 80GB HBM3" with drivers of CUDA 12.4 to 13.0
 *   - the H100 white paper: 8 GPCs, 66 TPCs, 132 multiprocessors
 *   - memory: what PyTorch reports as a device's capacity, rounded down
 * Which multiprocessors work differs from chip to chip; gpcs[] is one way to have 132 of them.
 */
#include "soft_i.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct profile own = {
	.name = "singvgpu soft device",
	.cc = SOFT_CC_MAJOR * 10 + SOFT_CC_MINOR,
	.memory = (size_t)8 << 30,
	.gpcs = { 16 },
};

static const struct profile_attr h100_attrs[] = {
	{ CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472 },
	{ CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024 },
	{ CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 52428800 },
	{ CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000 },
	{ CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000 },
	{ CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120 },
	{ CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 4 },
	/* atomics of the host's processor do not reach over PCIe, nor does it read managed memory */
	{ CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 0 },
	{ CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0 },
	{ 0, 0 },
};

static const struct profile h100 = {
	.name = "NVIDIA H100 80GB HBM3 (profile of the singvgpu soft device)",
	.cc = 90,
	.memory = (size_t)79 << 30,
	.attrs = h100_attrs,
	.gpcs = { 16, 16, 16, 16, 16, 16, 18, 18 },
	.strict_clusters = true,
	.machine_code = true,
	.pins_apart = true,
	.reset_ends = true,
};

const struct profile *profile = &own;
bool profile_no_hints, profile_window_taken, profile_late_window, profile_late_callbacks,
	profile_moved_variables, profile_context_first, profile_pageable_waits;

unsigned int profile_slow_maps, profile_slow_pins, profile_slow_reset, profile_queue;
char profile_neighbours[256];

static const struct {
	const char *name;
	bool *on;
	unsigned int *n;	/* "=N" follows the name */
	char *path;		/* "=FILE" */
} options[] = {
	{ "no-hints", .on = &profile_no_hints },
	{ "window-taken", .on = &profile_window_taken },
	{ "late-window", .on = &profile_late_window },
	{ "late-callbacks", .on = &profile_late_callbacks },
	{ "slow-maps", .n = &profile_slow_maps },
	{ "slow-pins", .n = &profile_slow_pins },
	{ "slow-reset", .n = &profile_slow_reset },
	{ "queue", .n = &profile_queue },
	{ "moved-variables", .on = &profile_moved_variables },
	{ "context-first", .on = &profile_context_first },
	{ "pageable-waits", .on = &profile_pageable_waits },
	{ "neighbours", .path = profile_neighbours },
};

static bool take_option(const char *s, size_t len)
{
	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
		size_t n = strlen(options[i].name);
		char *end;

		if (len < n || memcmp(s, options[i].name, n))
			continue;
		if (options[i].on && len == n) {
			*options[i].on = true;
			return true;
		}
		if (options[i].on || len < n + 2 || s[n++] != '=')
			continue;
		if (options[i].path) {
			if (len - n >= sizeof(profile_neighbours))
				return false;
			memcpy(options[i].path, s + n, len - n);
			return true;
		}
		*options[i].n = strtoul(s + n, &end, 10);
		return s[n] != '-' && end == s + len && *options[i].n <= 1000000;
	}
	return false;
}

void profile_cost(unsigned int us, uint64_t n)
{
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	uint64_t ns = us * n * 1000;

	if (!ns)
		return;
	pthread_mutex_lock(&one);
	nanosleep(&(struct timespec){ ns / 1000000000, ns % 1000000000 }, NULL);
	pthread_mutex_unlock(&one);
}

bool profile_init(void)
{
	const char *all = getenv("SINGVGPU_SOFT_PROFILE"), *s = all;
	size_t len;

	if (!s || !*s)
		return true;
	len = strcspn(s, ",");
	if (len != 4 || memcmp(s, "h100", len))
		goto unknown;
	profile = &h100;
	for (s += len; *s; s += len) {
		len = strcspn(++s, ",");
		if (!take_option(s, len))
			goto unknown;
	}
	return true;
unknown:
	soft_log("SINGVGPU_SOFT_PROFILE=%s: not h100[,no-hints][,window-taken][,late-window]"
		 "[,late-callbacks][,slow-maps=US][,slow-pins=US][,slow-reset=US][,queue=N]"
		 "[,moved-variables][,context-first][,pageable-waits][,neighbours=FILE]", all);
	return false;
}
