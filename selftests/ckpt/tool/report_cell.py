#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report_cell.py - a number of a page of `singvgpu report`: report_cell.py FILE TABLE ROW COLUMN

The page must be well-formed HTML: each element is closed in its place. ROW is the head of a row, or HEAD/CELL with
the text of its next cell.
"""
import html.parser
import sys

VOID = {"meta", "br"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tables, self.table, self.row, self.cell = [], {}, None, None, None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.table = self.tables.setdefault(attrs.get("id", len(self.tables)), [])
        elif tag == "tr" and self.table is not None:
            self.row = []
            self.table.append(self.row)
        elif tag in ("td", "th") and self.row is not None:
            self.cell = ["", attrs.get("data-n")]
            self.row.append(self.cell)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            sys.exit(f"</{tag}> at {self.getpos()} closes nothing")
        if tag in ("td", "th"):
            self.cell = None
        elif tag == "table":
            self.table = None

    def handle_data(self, data):
        if self.cell:
            self.cell[0] += data


def main(path, table, row, column):
    page = Page()
    with open(path, encoding="utf-8") as f:
        page.feed(f.read())
    page.close()
    if page.open:
        sys.exit(f"{page.open} is not closed")
    rows = page.tables[table]
    heads = [c[0].replace("\xad", "") for c in rows[0]]
    head, _, second = row.partition("/")
    for r in rows[1:]:
        if r[0][0] == head and (not second or r[1][0] == second):
            text, number = r[heads.index(column)]
            print(text if number is None else number)
            return
    sys.exit(f"{table} has no row {row}")


main(*sys.argv[1:])
