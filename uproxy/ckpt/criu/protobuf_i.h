/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protobuf_i.h - entries of CRIU's images
 *
 * An image begins with two magic numbers of 4 bytes; then each entry is a u32 length and a protobuf.
 * The images may be forged: a length never leads behind the end.
 */
#ifndef UPROXY_CKPT_PROTOBUF_I_H
#define UPROXY_CKPT_PROTOBUF_I_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PB_MAGICS 8

struct pb_field {
	unsigned int number;
	uint64_t value;		/* of a varint */
	const uint8_t *data;	/* of bytes */
	uint64_t len;
};

/* The next field of a protobuf: 1, 0 at the end, -1: malformed. */
int pb_field(const uint8_t **p, const uint8_t *end, struct pb_field *f);
/* The next entry of an image, from behind the magic numbers on: 1, 0 at the end, -1: malformed. */
int pb_entry(const uint8_t **p, const uint8_t *end, const uint8_t **entry, uint32_t *len);

void pb_put_varint(FILE *out, uint64_t v);

#endif
