// SPDX-License-Identifier: Apache-2.0
/*
 * html.c - text and numbers of the page, whatever bytes they come from
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "report_i.h"

/* The code of the UTF-8 character at *s, which is passed; 0xfffd for what is none, or is not for XML. */
static uint32_t next_char(const unsigned char **s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *p = *s;
	uint32_t c = *p;
	int n = c < 0x80 ? 1 : c >= 0xf0 && c < 0xf8 ? 4 : c >= 0xe0 && c < 0xf0 ? 3 :
		c >= 0xc0 && c < 0xe0 ? 2 : 0;

	*s = p + 1;
	if (n == 1)
		return c >= ' ' && c != 0x7f ? c : c == '\n' || c == '\t' ? ' ' : 0xfffd;
	if (!n)
		return 0xfffd;
	c &= 0x7f >> n;
	for (int i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0xfffd;
		c = c << 6 | (p[i] & 0x3f);
	}
	*s = p + n;
	/* Controls; surrogates; what turns the direction of text round. */
	if (c < least[n] || c > 0x10ffff || c < 0xa0 || (c >= 0xd800 && c < 0xe000) || (c & 0xfffe) == 0xfffe ||
	    (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069))
		return 0xfffd;
	return c;
}

void html_text(FILE *out, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	while (*s) {
		uint32_t c = next_char(&s);

		if (c < 0x80 && !strchr("<>&\"'`", c))
			putc(c, out);
		else
			fprintf(out, "&#%u;", c);
	}
}

char *html_show_bytes(char *buf, uint64_t bytes)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double n = bytes;
	int i = 0;

	while (n >= 999.5 && i < 6) {
		n /= 1024;
		i++;
	}
	snprintf(buf, 32, i && n < 99.95 ? "%.1f %s" : "%.0f %s", n, unit[i]);
	return buf;
}

char *html_show_seconds(char *buf, double s)
{
	unsigned long long n = s > 0 && s < 1e15 ? s + 0.5 : 0;

	if (s < 10)
		snprintf(buf, 32, "%.3f s", s > 0 ? s : 0);
	else if (s < 99.95)
		snprintf(buf, 32, "%.1f s", s);
	else if (n < 3600)
		snprintf(buf, 32, "%llu min %llu s", n / 60, n % 60);
	else if (n < 86400)
		snprintf(buf, 32, "%llu h %llu min", n / 3600, n / 60 % 60);
	else
		snprintf(buf, 32, "%llu d %llu h", n / 86400, n / 3600 % 24);
	return buf;
}

char *html_show_time(char *buf, uint64_t ns)
{
	time_t t = ns / 1000000000;
	struct tm tm;

	if (!localtime_r(&t, &tm) || !strftime(buf, 40, "%Y-%m-%d %H:%M:%S %Z", &tm))
		snprintf(buf, 40, "?");
	return buf;
}

void html_bytes(FILE *out, uint64_t bytes)
{
	char text[32];

	fprintf(out, "<td class=\"n\" data-n=\"%llu\">%s</td>", (unsigned long long)bytes,
		html_show_bytes(text, bytes));
}

char *html_show_count(char *buf, uint64_t n)
{
	char digits[32];
	int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n), to = 0;

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			buf[to++] = ',';
		buf[to++] = digits[i];
	}
	buf[to] = 0;
	return buf;
}

void html_count(FILE *out, uint64_t n)
{
	char text[32];

	fprintf(out, "<td class=\"n\" data-n=\"%llu\">%s</td>", (unsigned long long)n, html_show_count(text, n));
}

void html_seconds(FILE *out, double s)
{
	char text[32];

	fprintf(out, "<td class=\"n\" data-n=\"%.6f\">%s</td>", isfinite(s) ? s : 0,
		html_show_seconds(text, s));
}

void html_none(FILE *out)
{
	fputs("<td class=\"n\">&#8211;</td>", out);
}
