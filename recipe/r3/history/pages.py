# Copyright 2026 Individual Contributor: the R^3 recipe authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Does every page of the file have one use? Asked before training writes into it.

SQLite trusts the list of free pages, and the number of the page that a tree ends with: one wrong byte there, and it
writes over a page that is in use. Its own check of that reads all payloads. This one reads the list and the inner pages
of the trees, which name all their other pages but those of long responses: what is written over one of these is a
damaged sample, which is told when it is drawn.
"""

import sqlite3
from collections.abc import Iterator
from typing import BinaryIO

INNER = (2, 5)
"""First byte of a page of an index, and of a table, that holds the numbers of other pages."""


def check_pages(db: sqlite3.Connection, path: str) -> None:
    """Raise sqlite3.DatabaseError when a page is in use twice, or in use and free.

    Only what is in the file itself is seen, so the log is written back first; when a reader keeps that from being done,
    nothing is checked.
    """
    _, logged, written = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if logged != written:
        return
    [(size,)] = db.execute("PRAGMA page_size")
    [(number,)] = db.execute("PRAGMA page_count")
    roots = [root for (root,) in db.execute("SELECT rootpage FROM sqlite_master WHERE rootpage > 0")]
    with open(path, "rb") as file:
        pages = Pages(file, size, number)
        seen: set[int] = set()
        for use in (pages.free(), *(pages.tree(root) for root in (1, *roots))):
            for page in use:
                if page in seen:
                    raise sqlite3.DatabaseError(f"page {page} is in use twice, or free and in use")
                seen.add(page)


class Pages:
    """The pages of a file of `number` pages of `size` bytes; the first is page 1."""

    def __init__(self, file: BinaryIO, size: int, number: int):
        self.file, self.size, self.number = file, size, number

    def read(self, page: int) -> bytes:
        self.file.seek((page - 1) * self.size)
        if len(content := self.file.read(self.size)) < self.size:
            raise sqlite3.DatabaseError(f"page {page} is cut off")
        return content

    def is_one(self, page: int) -> bool:
        return 1 <= page <= self.number

    def free(self) -> Iterator[int]:
        """The free pages: a chain of pages, each with the number of the next and those of others."""
        header = self.read(1)
        page, count = _number(header, 32), _number(header, 36)
        found = 0
        while page:
            if not self.is_one(page) or found > count:
                raise sqlite3.DatabaseError("the list of free pages is broken")
            content = self.read(page)
            others = [_number(content, 8 + 4 * at) for at in range(min(_number(content, 4), self.size // 4 - 2))]
            if not all(map(self.is_one, others)):
                raise sqlite3.DatabaseError("the list of free pages is broken")
            yield from (page, *others)
            found += 1 + len(others)
            page = _number(content, 0)
        if found != count:
            raise sqlite3.DatabaseError(f"{found} free pages are listed, and {count} counted")

    def tree(self, page: int) -> Iterator[int]:
        """The pages of a tree, all of whose leaves are equally deep. What is not a page is left to those who use it."""
        yield page
        children = self.children(page)
        if children and self.children(children[0]):
            for child in children:
                yield from self.tree(child)
        else:
            yield from children

    def children(self, page: int) -> list[int]:
        content, begin = self.read(page), 100 if page == 1 else 0
        if content[begin] not in INNER:
            return []
        cells = [int.from_bytes(content[at : at + 2], "big") for at in self._cells(content, begin)]
        found = [_number(content, cell) for cell in cells] + [_number(content, begin + 8)]
        return [child for child in found if self.is_one(child) and child != page]

    def _cells(self, content: bytes, begin: int) -> range:
        """Where the places of the cells are."""
        count = min(int.from_bytes(content[begin + 3 : begin + 5], "big"), self.size // 6)
        return range(begin + 12, begin + 12 + 2 * count, 2)


def _number(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "big")
