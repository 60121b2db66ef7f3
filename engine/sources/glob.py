"""Whatever a glob pattern matches: images, tar shards, Parquet files."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator

from ..batch import Failure, Sample
from .files import failure_from_os_error
from .ids import id_from_bytes, shown
from .image_files import mode_of_link, sample_of_file
from .interface import Source
from .listing import Entry
from .pattern import Pattern
from .sniff import side_reason

OpenShard = Callable[[bytes, bytes, set[int]], Source | None]
"""``open_shard(path, name, seen)``: source of a file that is a shard, None for any other file."""


class GlobSource:
    """Files that match a pattern; the id is the path as the pattern types it.

    Images are samples, shards are opened, anything else is ignored and counted: folders too, which a
    final ``/**`` goes into. Lists are not opened.
    """

    def __init__(self, pattern: str | bytes | os.PathLike[str], *, open_shard: OpenShard) -> None:
        self._typed = os.fsencode(pattern)
        self._pattern = Pattern(self._typed)
        self._open_shard = open_shard
        self._own: Counter[str] = Counter()
        self._current: Source | None = None

    @property
    def ignored(self) -> Counter[str]:
        total = Counter(self._own)
        if self._current is not None:
            total.update(dict(self._current.ignored))
        return total

    def describe(self) -> str:
        return f"files that match {shown(self._typed)}"

    def __iter__(self) -> Iterator[Sample | Failure]:
        self._own = Counter()
        self._current = None
        seen: set[int] = set()
        for path, found in self._pattern.find():
            if isinstance(found, OSError):
                folder = path.rstrip(b"/") or b"."
                yield failure_from_os_error(found, id_from_bytes(folder), folder, kind="unreadable")
                continue
            try:
                entry = self._visit(path, found, seen)
            except OSError as error:
                yield failure_from_os_error(error, id_from_bytes(path), found.path)
                continue
            if isinstance(entry, Sample | Failure):
                yield entry
            elif entry is not None:
                self._current = entry
                yield from entry
                self._own.update(entry.ignored)
                self._current = None

    def _visit(self, path: bytes, entry: Entry, seen: set[int]) -> Sample | Failure | Source | None:
        reason = side_reason(entry.name)
        if reason is None:
            mode = self._mode(path, entry)
            if isinstance(mode, Failure):
                return mode
            if stat.S_ISREG(mode):
                return self._open_shard(entry.path, path, seen) or sample_of_file(entry.path, path, self._own)
            reason = "folder (a final /** goes into it)" if stat.S_ISDIR(mode) else "pipe, socket or device"
        self._own[reason] += 1
        return None

    def _mode(self, path: bytes, entry: Entry) -> int | Failure:
        if entry.is_symlink():
            return mode_of_link(entry.path, path)
        return entry.stat(follow_symlinks=False).st_mode
