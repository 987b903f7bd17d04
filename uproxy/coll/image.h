/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - the state of the step as a checkpoint has it
 *
 * An image has no offset, no list and no count that follows from the rest: a reader computes these, so nothing in it
 * can contradict them. Its arrays follow the head in this order, in host byte order, each entry at a multiple of 8:
 *
 *   proxies   ascending by number
 *   devices   ascending by number; those that have had a proxy
 *   comms     in the order in which the step holds them
 *   members   of the first communicator, by rank, then of the second …
 *   ops       of the first communicator, in the order of their first posting, then of the second …
 *   parts     of the first operation, in the order of posting, then of the second …
 *   records   in any order; parts name them by their place here
 *
 * Versions. 1: the memory of the step as it was, behind a head of 4096 bytes (image_old.c). 2: this.
 */
#ifndef COLL_IMAGE_H
#define COLL_IMAGE_H

#include <stddef.h>
#include <stdint.h>

#include "step.h"

#define IMAGE_MAGIC   0x49424753u /* "SGBI" */
#define IMAGE_VERSION 2

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
struct image_head {
	uint32_t magic, version;
	uint64_t size; /* of the whole image */
	uint32_t proxies, devices, comms, members, ops, parts, records, zero;
	uint64_t orders, births;
};

struct image_proxy {
	uint32_t proxy, device;
	uint8_t state, zero[7]; /* enum proxy_state */
};

struct image_device {
	uint32_t device, zero;
	uint64_t seen, woken;
};

struct image_comm {
	uint64_t key;
	uint32_t ranks, joined, first;
	uint8_t state, code, zero[2]; /* enum comm_state */
};

struct image_member {
	uint64_t posted;
	uint32_t proxy, joined; /* proxy: STEP_NONE, it is gone */
	uint8_t state, zero[7]; /* enum member_state */
};

struct image_op {
	uint64_t number, order, born;
	uint64_t count;
	uint32_t comm, parts, peer;
	uint8_t kind, type, op, code;
};

struct image_part {
	uint64_t cookie;
	uint32_t member, proxy, device, call;
	uint32_t record; /* STEP_NONE: the part has been told */
	uint8_t state, begun, zero[2]; /* enum part_state */
};

struct image_record {
	uint64_t cookie;
	uint32_t member;
	uint8_t code, zero[3];
};
#pragma GCC diagnostic pop

_Static_assert(sizeof(struct image_head) == 64, "file format");
_Static_assert(sizeof(struct image_proxy) == 16, "file format");
_Static_assert(sizeof(struct image_device) == 24, "file format");
_Static_assert(sizeof(struct image_comm) == 24, "file format");
_Static_assert(sizeof(struct image_member) == 24, "file format");
_Static_assert(sizeof(struct image_op) == 48, "file format");
_Static_assert(sizeof(struct image_part) == 32, "file format");
_Static_assert(sizeof(struct image_record) == 16, "file format");

/* An image of version 1 as one of version 2, which the caller frees; that is still to be checked. -EBADMSG, -ENOMEM. */
int image_from_1(const void *image, size_t len, void **to, size_t *to_len, const char **why);

#endif /* COLL_IMAGE_H */
