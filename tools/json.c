// SPDX-License-Identifier: Apache-2.0
/*
 * json.c - writes JSON from text of any bytes
 */
#include <math.h>
#include <string.h>

#include "tool_i.h"

/* The length of the UTF-8 character at s, 0 if it is none. */
static int utf8(const unsigned char *s, size_t len)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	uint32_t c;
	int n;

	if (s[0] < 0x80)
		return 1;
	n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;
	if (!n || s[0] >= 0xf8 || len < (size_t)n)
		return 0;
	c = s[0] & (0x7f >> n);
	for (int i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

void json_text(FILE *out, const char *text, size_t len)
{
	const unsigned char *s = (const unsigned char *)text;

	putc('"', out);
	while (len) {
		int n = utf8(s, len);

		if (*s == '"' || *s == '\\')
			fprintf(out, "\\%c", *s);
		else if (*s < 0x20 || *s == 0x7f || !n)
			fprintf(out, "\\u%04x", *s);
		else if (*s == 0xc2 && s[1] < 0xa0)
			fprintf(out, "\\u%04x", s[1]);	/* a control character, too */
		else
			fwrite(s, n, 1, out);
		s += n ?: 1;
		len -= n ?: 1;
	}
	putc('"', out);
}

static void begin_value(struct json *j, const char *key)
{
	if (j->depth) {
		fputs(j->some[j->depth] ? ",\n" : "\n", j->out);
		j->some[j->depth] = true;
		fprintf(j->out, "%*s", 2 * j->depth, "");
	}
	if (key) {
		json_text(j->out, key, strlen(key));
		fputs(": ", j->out);
	}
}

void json_open(struct json *j, const char *key, char kind)
{
	begin_value(j, key);
	putc(kind, j->out);
	j->some[++j->depth] = false;
}

void json_close(struct json *j, char kind)
{
	bool some = j->some[j->depth--];

	if (some)
		fprintf(j->out, "\n%*s", 2 * j->depth, "");
	putc(kind, j->out);
	if (!j->depth)
		putc('\n', j->out);
}

void json_string(struct json *j, const char *key, const char *text)
{
	begin_value(j, key);
	json_text(j->out, text, strlen(text));
}

void json_number(struct json *j, const char *key, double n)
{
	begin_value(j, key);
	if (isfinite(n))
		fprintf(j->out, "%.6g", n);
	else
		fputs("null", j->out);
}

void json_uint(struct json *j, const char *key, uint64_t n)
{
	begin_value(j, key);
	fprintf(j->out, "%llu", (unsigned long long)n);
}

void json_int(struct json *j, const char *key, int64_t n)
{
	begin_value(j, key);
	fprintf(j->out, "%lld", (long long)n);
}

void json_bool(struct json *j, const char *key, bool b)
{
	begin_value(j, key);
	fputs(b ? "true" : "false", j->out);
}
