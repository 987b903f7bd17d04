/* SPDX-License-Identifier: Apache-2.0 */
/*
 * why.h - an error on its way to the user: an errno and a sentence
 *
 * Code decides by the errno; only people read the sentence. The first failure is kept: later ones,
 * which follow from it, change nothing.
 */
#ifndef UPROXY_WHY_H
#define UPROXY_WHY_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WHY_TEXT 1200

struct why {
	int err;		/* -errno; 0: nothing has failed */
	char text[WHY_TEXT];	/* "": there is no sentence */
};

/* Stores a failure if it is the first; err is not 0. Returns err. */
__attribute__((format(printf, 3, 0)))
static inline int why_vset(struct why *w, int err, const char *fmt, va_list ap)
{
	if (w->err)
		return err;
	w->err = err;
	vsnprintf(w->text, sizeof(w->text), fmt, ap);
	return err;
}

__attribute__((format(printf, 3, 4)))
static inline int why_set(struct why *w, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	why_vset(w, err, fmt, ap);
	va_end(ap);
	return err;
}

/* Appends to the sentence of the failure. */
__attribute__((format(printf, 2, 3)))
static inline void why_add(struct why *w, const char *fmt, ...)
{
	size_t n = strlen(w->text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(w->text + n, sizeof(w->text) - n, fmt, ap);
	va_end(ap);
}

/* The sentence for a failure of which no more is known. */
static inline const char *err_text(int err)
{
	return err == -ENOMEM ? "out of memory" : strerror(-err);
}

/* Stores err of a function with text, "" if there is none. Returns err; 0 is no failure. */
static inline int why_text(struct why *w, int err, const char *text)
{
	return err ? why_set(w, err, "%s", *text ? text : err_text(err)) : 0;
}

/* Copies the sentence into a field of a format, which may cut it. */
static inline void why_copy(char *field, size_t size, const struct why *w)
{
	snprintf(field, size, "%.*s", (int)size - 1, w->text);
}

/* Forgets a failure that does not matter. */
static inline void why_clear(struct why *w)
{
	w->err = 0;
	*w->text = 0;
}

#endif
