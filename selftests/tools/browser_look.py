#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""browser_look.py - what test-browser asks of a page

    probe FILE TO      a copy with a script that measures it; the page's own policy, which forbids scripts, is left out
    shot FILE          what a screenshot (PNG) shows: "COLOURS BACKGROUND EMPTY", with the number of different colours,
                       the colour of the corner as rrggbb, and the percentage of the rows that have one colour
"""
import re
import struct
import sys
import zlib

# Texts that overlap, or leave their chart; what makes the page wider than its window.
PROBE = """<script>
var bad = [];
document.querySelectorAll('details').forEach(function (d) { d.open = true; });
document.querySelectorAll('.chart svg').forEach(function (s, n) {
  var box = s.getBoundingClientRect(), all = [];
  s.querySelectorAll('text').forEach(function (t) {
    var b = t.getBoundingClientRect();
    if (b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1)
      bad.push('chart ' + n + ': "' + t.textContent + '" is cut off');
    all.forEach(function (a) {
      if (b.left < a.b.right - 1 && a.b.left < b.right - 1 && b.top < a.b.bottom - 3 && a.b.top < b.bottom - 3)
        bad.push('chart ' + n + ': "' + t.textContent + '" lies on "' + a.t + '"');
    });
    all.push({ b: b, t: t.textContent });
  });
  if (parseFloat(getComputedStyle(s.querySelector('text')).fontSize) * box.width / s.viewBox.baseVal.width < 8.5)
    bad.push('chart ' + n + ': its text is small');
});
document.querySelectorAll('td, th').forEach(function (c) {
  if (c.clientHeight > 300 && !c.closest('.facts')) bad.push('a cell is ' + c.clientHeight + ' high');
});
var e = document.documentElement;
if (e.scrollWidth > e.clientWidth) bad.push('it is wider than the window by ' + (e.scrollWidth - e.clientWidth));
document.title = 'PROBE ' + (bad.length ? bad.slice(0, 8).join('; ') : 'fine') + ' END';
</script>"""


def probe(path, to):
    page = open(path, encoding="utf-8").read()
    page, n = re.subn(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", page)
    assert n == 1, "the page has no policy"
    open(to, "w", encoding="utf-8").write(page.replace("</body>", PROBE + "</body>"))


def rows(path):
    data = open(path, "rb").read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        part = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", part[:10])
            assert depth == 8 and colour in (2, 6), "no screenshot of Chromium's"
        elif kind == b"IDAT":
            packed += part
        at += 12 + size
    bpp = 3 if colour == 2 else 4
    raw, size, last = zlib.decompress(packed), width * bpp, bytearray(width * bpp)
    for y in range(height):
        how, line = raw[y * (size + 1)], bytearray(raw[y * (size + 1) + 1:(y + 1) * (size + 1)])
        for i in range(size if how else 0):
            a = line[i - bpp] if i >= bpp else 0
            b, c = last[i], last[i - bpp] if i >= bpp else 0
            if how == 4:
                p = a + b - c
                d = (abs(p - a), abs(p - b), abs(p - c))
                a = a if d[0] <= d[1] and d[0] <= d[2] else b if d[1] <= d[2] else c
            line[i] = line[i] + (a, b, (a + b) // 2, a)[how - 1] & 255
        last = line
        yield [bytes(line[i:i + 3]) for i in range(0, size, bpp)]


def shot(path):
    colours, empty, n, corner = set(), 0, 0, None
    for line in rows(path):
        corner = corner or line[0]
        here = set(line)
        colours |= here
        empty += len(here) == 1
        n += 1
    print(len(colours), corner.hex(), 100 * empty // n)


{"probe": probe, "shot": shot}[sys.argv[1]](*sys.argv[2:])
