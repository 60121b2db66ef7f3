"""Glob patterns over path bytes: ``*``, ``?``, ``[...]``, and ``**`` for any number of folders."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator

from .listing import Entry, sorted_entries

_MAGIC = re.compile(rb"[*?\[]")


def is_pattern(path: bytes) -> bool:
    return _MAGIC.search(path) is not None


class Pattern:
    """A glob pattern; ``*`` and ``**`` match no leading dot, and ``**`` follows no link to a folder.

    The folder tree is walked once, so no path comes twice, however many ``**`` there are.
    """

    def __init__(self, pattern: bytes) -> None:
        parts = pattern.split(b"/")
        magic = next(place for place, part in enumerate(parts) if is_pattern(part))
        self.base = b"/".join(parts[:magic])
        if magic == 1 and not self.base:
            self.base = b"/"
        self.folder = os.path.abspath(self.base or b".")  # a later chdir must not move the run
        self._parts = [_part(part) for part in parts[magic:] if part]

    def find(self) -> Iterator[tuple[bytes, Entry | OSError]]:
        """Matching paths as the pattern types them, each with its entry.

        Depth first, each folder in the order of ``sorted_entries``. A folder that cannot be listed
        comes with its error; a link to a folder that ``**`` does not follow comes as a match.
        """
        end = len(self._parts)
        prefix = self.base if self.base.endswith(b"/") or not self.base else self.base + b"/"
        walk = [(prefix, sorted_entries(self.folder), self._closed({0}) - {end})]
        while walk:
            prefix, entries, states = walk[-1]
            try:
                entry = next(entries, None)
            except OSError as error:
                walk.pop()
                yield prefix, error
                continue
            if entry is None:
                walk.pop()
                continue
            path = prefix + entry.name
            matched, unfollowed = self._next(states, entry)
            below = matched - {end}
            if below and _is_folder(entry):
                walk.append((path + b"/", sorted_entries(entry.path), below))
            elif end in matched or unfollowed:
                yield path, entry

    def _next(self, states: set[int], entry: Entry) -> tuple[set[int], bool]:
        """Places in the pattern that are reached behind an entry; and whether it is a link that ``**`` meets."""
        found = set()
        unfollowed = False
        name = os.fsdecode(entry.name)
        for state in states:
            part = self._parts[state]
            if part is not None:
                if part.fullmatch(name):
                    found.add(state + 1)
            elif not name.startswith("."):
                if entry.is_symlink() and _is_folder(entry):
                    unfollowed = True
                else:
                    found.add(state)
        return self._closed(found), unfollowed

    def _closed(self, states: set[int]) -> set[int]:
        """States with those that are reached through a ``**`` that stands for no folder."""
        closed = set()
        for start in states:
            state = start
            closed.add(state)
            while state < len(self._parts) and self._parts[state] is None:
                state += 1
                closed.add(state)
        return closed


def _part(part: bytes) -> re.Pattern[str] | None:
    """Expression of one component, None for ``**``."""
    if part == b"**":
        return None
    text = os.fsdecode(part)
    no_dot = "" if text.startswith(".") else r"(?!\.)"
    return re.compile(no_dot + fnmatch.translate(text))


def _is_folder(entry: Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links
        return False
