# SPDX-License-Identifier: Apache-2.0
"""The names of NCCL that PyTorch's wheels on PyPI import, for wheels.txt: wheel_names.py VERSION...

Of each wheel only libtorch_cuda.so is read, which is a compressed member of some 300 MB, and nothing is kept: a
string table has its names between zeroes. They are those that `nm -D --undefined-only` shows of a wheel that has
been unpacked."""
import html
import re
import struct
import sys
import urllib.parse
import urllib.request
import zlib

INDEX = "https://pypi.org/simple/torch/"
MEMBER = "torch/lib/libtorch_cuda.so"


def part(url, first, last):
    return urllib.request.urlopen(urllib.request.Request(url, headers={"Range": f"bytes={first}-{last}"}))


def wheel(version):
    request = urllib.request.Request(INDEX, headers={"Accept": "text/html"})
    page = urllib.request.urlopen(request).read().decode()
    for url, name in re.findall(r'href="([^"#]+)[^"]*"[^>]*>([^<]+)</a>', page):
        if re.match(rf"torch-{re.escape(version)}-cp31\d-cp31\d-manylinux.*x86_64\.whl$", name):
            return urllib.parse.urljoin(INDEX, html.unescape(url))
    sys.exit(f"there is no wheel of {version}")


def member(url):
    """Offset of the member's header, and its compressed size."""
    size = int(urllib.request.urlopen(urllib.request.Request(url, method="HEAD")).headers["Content-Length"])
    end = part(url, size - 65536, size - 1).read()
    length, offset = struct.unpack_from("<II", end, end.rindex(b"PK\5\6") + 12)
    listed, at = part(url, offset, offset + length - 1).read(), 0
    while listed[at:at + 4] == b"PK\1\2":
        name, extra, comment = struct.unpack_from("<HHH", listed, at + 28)
        if listed[at + 46:at + 46 + name] == MEMBER.encode():
            return struct.unpack_from("<I", listed, at + 42)[0], struct.unpack_from("<I", listed, at + 20)[0]
        at += 46 + name + extra + comment
    sys.exit(f"{url} has no {MEMBER}")


def names(url):
    offset, length = member(url)
    offset += 30 + sum(struct.unpack("<HH", part(url, offset + 26, offset + 29).read()))
    stream, inflate, kept, found = part(url, offset, offset + length - 1), zlib.decompressobj(-15), b"", set()
    while chunk := stream.read(1 << 20):
        window = kept + inflate.decompress(chunk)
        found.update(name.decode() for name in re.findall(rb"(?<=\0)p?nccl[A-Z][A-Za-z]*(?=\0)", window))
        kept = window[-100:]
    return sorted(found)


for version in sys.argv[1:]:
    print(version, *names(wheel(version)), flush=True)
