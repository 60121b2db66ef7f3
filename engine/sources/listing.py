"""Entries of one folder in a fixed order, listed while they are consumed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from operator import attrgetter

CHUNK = 4096
"""Entries that are sorted together: enough for order, few enough for a first sample at once."""

Entry = os.DirEntry[bytes]
Scandir = Callable[[bytes], AbstractContextManager[Iterator[Entry]]]

_name = attrgetter("name")


def sorted_entries(folder: bytes, scandir: Scandir = os.scandir) -> Iterator[Entry]:
    """Entries by name bytes, sorted in chunks of CHUNK; raises OSError after what was listed till then.

    A folder of up to CHUNK entries is sorted as a whole. A larger one keeps the file system's order
    of chunks, which is the same each time for a folder that nobody changes.
    """
    with scandir(folder) as entries:
        while True:
            chunk, error = _next_chunk(entries)
            chunk.sort(key=_name)
            yield from chunk
            if error is not None:
                raise error
            if len(chunk) < CHUNK:
                return


def _next_chunk(entries: Iterator[Entry]) -> tuple[list[Entry], OSError | None]:
    chunk: list[Entry] = []
    try:
        for entry in entries:
            chunk.append(entry)  # not extend(): what was read before an error is kept for certain
            if len(chunk) == CHUNK:
                break
    except OSError as error:
        return chunk, error
    return chunk, None
