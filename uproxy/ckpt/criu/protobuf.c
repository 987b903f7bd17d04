// SPDX-License-Identifier: Apache-2.0
/*
 * protobuf.c - reads and writes the entries of CRIU's images, which are protobufs
 */
#include <string.h>

#include "protobuf_i.h"

static bool varint(const uint8_t **p, const uint8_t *end, uint64_t *v)
{
	*v = 0;
	for (int shift = 0; *p < end && shift < 70; shift += 7) {
		uint8_t b = *(*p)++;

		*v |= shift < 64 ? (uint64_t)(b & 0x7f) << shift : 0;
		if (!(b & 0x80))
			return true;
	}
	return false;
}

int pb_field(const uint8_t **p, const uint8_t *end, struct pb_field *f)
{
	uint64_t key;

	if (*p == end)
		return 0;
	if (!varint(p, end, &key))
		return -1;
	f->number = key >> 3;
	f->data = NULL;
	f->value = f->len = 0;
	switch (key & 7) {
	case 0:
		return varint(p, end, &f->value) ? 1 : -1;
	case 2:
		if (!varint(p, end, &f->len) || f->len > (uint64_t)(end - *p))
			return -1;
		break;
	case 1:
	case 5:
		f->len = (key & 7) == 1 ? 8 : 4;
		if (f->len > (uint64_t)(end - *p))
			return -1;
		break;
	default:
		return -1;
	}
	f->data = *p;
	*p += f->len;
	return 1;
}

int pb_entry(const uint8_t **p, const uint8_t *end, const uint8_t **entry, uint32_t *len)
{
	if (*p == end)
		return 0;
	if (end - *p < 4)
		return -1;
	memcpy(len, *p, 4);
	if (*len > (uint64_t)(end - *p - 4))
		return -1;
	*entry = *p + 4;
	*p += 4 + *len;
	return 1;
}

void pb_put_varint(FILE *out, uint64_t v)
{
	for (; v > 0x7f; v >>= 7)
		putc(0x80 | (v & 0x7f), out);
	putc(v, out);
}
