/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gen.h - the generator's model of a library: functions, records and types
 *
 *   header.c  headers ──► functions, parameters and their types
 *   ann.c     annotations ──► class and meaning of each function (grammar: head of cuda.ann)
 *   ledger.c  opcodes.txt ──► a number for each function and record that crosses the ring
 *   names.c, cover.c, client.c, server.c, wire.c     write the generated files
 *
 * The program is short-lived: nothing is freed, and any error ends it with FILE:LINE: MESSAGE.
 */
#ifndef GEN_H
#define GEN_H

#include <clang-c/Index.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* C_RECORD: a record of no function. */
enum class { C_UNSET, C_GEN, C_HAND, C_LOCAL, C_NONE, C_COUNT, C_RECORD };

/* The kind of a generated function's parameter. */
enum kind {
	K_UNSET,
	K_VALUE,	/* number, enum or flat struct, by value */
	K_HANDLE,	/* handle, used */
	K_DEL,		/* handle, destroyed */
	K_ADDR,		/* device address; range is checked if there is an expression */
	K_NEW,		/* pointer to a handle that the call creates */
	K_OUT,		/* pointer to one flat object, written */
	K_IN,		/* pointer to one flat object, read */
	K_INOUT,
	K_ARRAY,	/* pointer to `count` flat objects or handles, read */
	K_STR,		/* zero-terminated string, read */
};

struct param {
	const char *name;
	const char *type;	/* as the header writes it */
	CXType ct;
	enum kind kind;
	bool nullable;
	bool write;		/* K_ADDR: the range is written */
	const char *expr;	/* K_ADDR: bytes, or NULL; K_ARRAY: the parameter with the count */
	int handle;		/* index of the handle type, or -1 */
};

struct func {
	const char *name;
	const char *ret;
	struct param *param;
	int nparam;
	struct func *base;	/* of a per-thread variant: the function that it varies */
	struct func *variant;	/* of a function: its per-thread variant, or NULL */
	enum class class;
	const char *reason;
	int line;		/* of its annotation */
	bool sync, log, ctx, hook, late;
	int op;
};

struct record {			/* of no function */
	const char *name;
	int line, op;
};

struct handle {
	const char *name;
	bool real;		/* its values are the driver's own */
	bool stream;		/* 0 and the special values are resolved by the client */
};

struct pfn {			/* a row of the cuGetProcAddress table */
	const char *base;
	int version;
	bool per_thread;
	const char *suffix;	/* "", "_ptds", "_ptsz" */
	const char *symbol;
};

struct lib {
	const char *ann;	/* the annotation file's name */
	const char *name, *result, *ok;
	const char *err_value, *err_unsupported;
	const char *alias;	/* prefix of second names, as p in pncclSend */
	const char **more;	/* names that the library exports besides the header's */
	int nmore;
	const char **header;
	int nheader;
	const char *define;	/* defined for a second parse, or NULL */
	struct func *func;
	int nfunc;
	struct record *record;
	int nrecord;
	struct handle *handle;
	int nhandle;
	const char **address;	/* typedefs of device addresses */
	int naddress;
	struct pfn *pfn;
	int npfn;
};

struct field {			/* of a wire struct */
	const char *name, *type;
	unsigned int size, align;
};

/* main.c */
_Noreturn void fail(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
char *format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void *grow(void *array, int n, size_t size);
FILE *create(const char *dir, const char *name);
extern const char *const class_name[C_COUNT];

/* header.c: after ann_preamble, which names the headers; -I flags in inc. */
void header_read(struct lib *l, const char **inc, int ninc);
struct func *find_func(struct lib *l, const char *name);
int find_handle(struct lib *l, CXType t);
bool is_address(struct lib *l, CXType t);
bool is_flat(struct lib *l, CXType t, const char **why);

/* ann.c: preamble first, the functions after header_read. */
void ann_preamble(struct lib *l, const char *file);
void ann_functions(struct lib *l);

/* ledger.c */
void ledger_read(struct lib *l, const char *file, bool assign);

/* names.c, cover.c, client.c, server.c, wire.c */
void names_build(struct lib *l);
const struct pfn *names_row(const struct lib *l, const char *base);
void names_write(struct lib *l, const char *dir);
void map_write(struct lib *l, const char *dir);
void cover_write(struct lib *l, const char *dir);
void cover_print(struct lib *l, const char *list);
void wire_write(struct lib *l, const char *dir);
void client_write(struct lib *l, const char *dir);
void server_write(struct lib *l, const char *dir);
int wire_args(struct lib *l, const struct func *f, struct field **out);
int wire_reply(struct lib *l, const struct func *f, struct field **out);
bool has_tail(const struct func *f);
bool has_nulls(const struct func *f);
int null_bit(const struct func *f, const struct param *p);
const struct param *stream_param(const struct lib *l, const struct func *f);

#endif
