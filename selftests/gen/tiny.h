/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiny.h - a library that has one of everything that svgen knows, for the golden tests
 */
#ifndef TINY_H
#define TINY_H

#include <stddef.h>

typedef enum { TINY_OK, TINY_BAD, TINY_LACKS, TINY_ADDR } tinyResult;
typedef struct tinyStream_st *tinyStream;
typedef struct tinyEvent_st *tinyEvent;
typedef unsigned long long tinyTex_v1;
typedef tinyTex_v1 tinyTex;
typedef unsigned long long tinyAddr;
typedef struct {
	short kind;
	int width;
	float scale[2];
} tinyDesc;
typedef struct {
	int n;
	struct {
		void *p;
	} in;
} tinyDeep;

tinyResult tinyEventCreate(tinyEvent *event, unsigned int flags);
tinyResult tinyEventDestroy(tinyEvent event);
tinyResult tinyEventRecord(tinyEvent event, tinyStream stream);
tinyResult tinyEventRecord_ptsz(tinyEvent event, tinyStream stream);
tinyResult tinyFill(tinyAddr to, size_t pitch, size_t width, size_t height, unsigned char value,
		    tinyStream stream);
tinyResult tinyJoin(const char *name, const tinyEvent *events, const tinyDesc *descs, int count);
tinyResult tinyTexCreate(tinyTex *tex, const tinyDesc *desc);
tinyResult tinyTexQuery(tinyTex tex, tinyDesc *desc, int *level);
tinyResult tinyOpen(int how);
tinyResult tinyOpen_v2(int how, tinyDeep *deep);
tinyResult tinyOpenAt(const tinyAddr *where);
const char *tinyName(void);

typedef tinyResult (*PFN_tinyEventRecord_v1000)(tinyEvent event, tinyStream stream);
typedef tinyResult (*PFN_tinyEventRecord_v7000_ptsz)(tinyEvent event, tinyStream stream);
typedef tinyResult (*PFN_tinyOpen_v2000)(int how);
typedef tinyResult (*PFN_tinyOpen_v11010)(int how, tinyDeep *deep);

#endif
