// SPDX-License-Identifier: Apache-2.0
/*
 * printf.c - device printf, assert, and the heap.
 *
 * Each lane's call is formatted and printed as a whole, in order of lanes.  Arguments are in the
 * lane's argument buffer, each naturally aligned.
 */
#include <stdio.h>
#include <string.h>

#include "rt_i.h"

enum { MAX_FORMAT = 65536 };

struct out {
	char buf[4096];
	size_t n;
};

static char get_char(struct rt_warp *w, uint64_t a, int lane)
{
	return *rt_resolve(w, a, 1, RT_GENERIC, lane, false);
}

static uint64_t get_arg(struct rt_warp *w, uint64_t *a, unsigned int size, int lane)
{
	uint64_t v = 0;

	*a = (*a + size - 1) & ~(uint64_t)(size - 1);
	memcpy(&v, rt_resolve(w, *a, size, RT_GENERIC, lane, false), size);
	*a += size;
	return v;
}

static void put_text(struct out *o, const char *s, size_t n)
{
	if (n > sizeof(o->buf) - o->n)
		n = sizeof(o->buf) - o->n;
	memcpy(o->buf + o->n, s, n);
	o->n += n;
}

static void put_string(struct rt_warp *w, struct out *o, const char *spec, uint64_t a, int lane)
{
	char s[2048], t[2200];
	size_t n = 0;

	if (!a) {
		put_text(o, "(null)", 6);
		return;
	}
	while (n < sizeof(s) - 1 && (s[n] = get_char(w, a + n, lane)))
		n++;
	s[n] = 0;
	snprintf(t, sizeof(t), spec, s);
	put_text(o, t, strlen(t));
}

/* One conversion: @spec is "%...c" without length letters. */
static void put_conv(struct rt_warp *w, struct out *o, char *spec, int longs, uint64_t *args,
		     int lane)
{
	size_t n = strlen(spec);
	char c = spec[n - 1], t[512];
	double d;
	uint64_t v;

	switch (c) {
	case 'd': case 'i': case 'u': case 'o': case 'x': case 'X':
		v = get_arg(w, args, longs > 0 ? 8 : 4, lane);
		if (longs < 0 && (c == 'd' || c == 'i'))
			v = longs == -1 ? (uint64_t)(int64_t)(int16_t)v : (uint64_t)(int64_t)(int8_t)v;
		else if (longs < 0)
			v = longs == -1 ? (uint16_t)v : (uint8_t)v;
		else if (!longs && (c == 'd' || c == 'i'))
			v = (int64_t)(int32_t)v;
		memcpy(spec + n - 1, "ll", 2);
		spec[n + 1] = c;
		spec[n + 2] = 0;
		snprintf(t, sizeof(t), spec, (long long)v);
		break;
	case 'c':
		v = get_arg(w, args, 4, lane);
		snprintf(t, sizeof(t), spec, (int)v);
		break;
	case 'p':
		v = get_arg(w, args, 8, lane);
		snprintf(t, sizeof(t), spec, (void *)v);
		break;
	case 's':
		put_string(w, o, spec, get_arg(w, args, 8, lane), lane);
		return;
	case 'f': case 'F': case 'e': case 'E': case 'g': case 'G': case 'a': case 'A':
		v = get_arg(w, args, 8, lane);
		memcpy(&d, &v, 8);
		if (d != d)
			d = __builtin_nan("");	/* printed without a sign, as on a GPU */
		snprintf(t, sizeof(t), spec, d);
		break;
	default:
		put_text(o, spec, n);
		return;
	}
	put_text(o, t, strlen(t));
}

static int clamp(int v)
{
	return v > 999 ? 999 : v < -999 ? -999 : v;
}

/* A format's next character; 0 after MAX_FORMAT of them. */
static char next(struct rt_warp *w, uint64_t *fmt, unsigned int *left, int lane)
{
	if (!*left)
		return 0;
	--*left;
	return get_char(w, (*fmt)++, lane);
}

/* Returns the number of arguments used, as a GPU's printf does. */
static int format(struct rt_warp *w, struct out *o, uint64_t fmt, uint64_t args, int lane)
{
	unsigned int left = MAX_FORMAT, used = 0;
	char c, spec[64];

	while ((c = next(w, &fmt, &left, lane))) {
		size_t n = 0, digits = 0;
		int longs = 0;

		if (c != '%') {
			put_text(o, &c, 1);
			continue;
		}
		spec[n++] = '%';
		while ((c = next(w, &fmt, &left, lane))) {
			if (strchr("lLjzt", c)) {
				longs++;
			} else if (c == 'h') {
				longs--;
			} else if (c == '*') {
				used++;
				n += snprintf(spec + n, 16, "%d",
					      clamp((int)get_arg(w, &args, 4, lane)));
			} else {
				digits = c >= '0' && c <= '9' ? digits + 1 : 0;
				if (digits > 3)		/* C would produce any width */
					continue;
				spec[n++] = c;
				if (!strchr("0123456789+- #.'", c))
					break;
			}
			if (n > 40)
				break;
		}
		spec[n] = 0;
		if (!c)
			break;
		if (c == '%') {
			put_text(o, "%", 1);
		} else {
			put_conv(w, o, spec, longs, &args, lane);
			used++;
		}
	}
	return used;
}

static void rt_vprintf(struct rt_warp *w, uint32_t mask)
{
	struct rt_run *r = w->block->worker->run;
	const struct ptx_host *h = r->l->host;

	EACH(mask, l) {
		uint64_t fmt = w->x.u64[l], args = w->x.u64[128 + l];
		struct out o;

		if (!fmt) {
			w->y.u32[l] = -1;
			continue;
		}
		o.n = 0;
		w->y.u32[l] = format(w, &o, fmt, args, l);
		if (h && h->print) {
			pthread_mutex_lock(&r->lock);
			h->print(h->user, o.buf, o.n);
			pthread_mutex_unlock(&r->lock);
		}
	}
}

static void get_str(struct rt_warp *w, uint64_t a, int lane, char *s, size_t n)
{
	size_t k = 0;

	while (a && k + 1 < n && (s[k] = get_char(w, a + k, lane)))
		k++;
	s[k] = 0;
}

/* A line for every thread in @mask, as far as they fit. */
static void rt_assertfail(struct rt_warp *w, uint32_t mask)
{
	char msg[128], file[160], func[128], text[sizeof(((struct ptx_fault *)0)->text)];
	size_t at = 0;

	EACH(mask, l) {
		int n;

		get_str(w, w->x.u64[l], l, msg, sizeof(msg));
		get_str(w, w->x.u64[128 + l], l, file, sizeof(file));
		get_str(w, w->x.u64[384 + l], l, func, sizeof(func));
		n = snprintf(text + at, sizeof(text) - at,
			     "%s%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.",
			     at ? "\n" : "", file, w->x.u32[512 + l], func, w->ctaid[0], w->ctaid[1],
			     w->ctaid[2], w->tid[0][l], w->tid[1][l], w->tid[2][l], msg);
		if (at + n >= sizeof(text)) {
			text[at] = 0;
			break;
		}
		at += n;
	}
	rt_fault(w, PTX_ASSERT, 0, __builtin_ctz(mask | 1u << 31), text);
}

static void rt_malloc(struct rt_warp *w, uint32_t mask)
{
	const struct ptx_host *h = w->block->worker->run->l->host;

	EACH(mask, l)
		w->y.u64[l] = h && h->malloc ? h->malloc(h->user, w->x.u64[l]) : 0;
}

static void rt_free(struct rt_warp *w, uint32_t mask)
{
	const struct ptx_host *h = w->block->worker->run->l->host;

	EACH(mask, l)
		if (w->x.u64[l] && h && h->free)
			h->free(h->user, w->x.u64[l]);
}

const struct rt_symbol rt_printf_symbols[] = {
	{ "rt_vprintf", rt_vprintf }, { "rt_assertfail", rt_assertfail },
	{ "rt_malloc", rt_malloc }, { "rt_free", rt_free }, { NULL, NULL },
};
