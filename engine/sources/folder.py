"""A folder and all folders below it."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator

from ..batch import Failure, Sample
from .files import failure_from_os_error
from .ids import id_from_bytes, shown
from .image_files import mode_of_link, sample_of_file
from .listing import Entry, Scandir, sorted_entries
from .sniff import side_reason


class _Folder:
    """One level of a walk: ``prefix`` starts the ids of its entries, ``real`` their paths without links."""

    __slots__ = ("entries", "path", "prefix", "real")

    def __init__(self, path: bytes, real: bytes, prefix: bytes, scandir: Scandir) -> None:
        self.path = path
        self.real = real if real.endswith(b"/") else real + b"/"
        self.prefix = prefix
        self.entries = sorted_entries(path, scandir)


class FolderSource:
    """Images of a folder, depth first, each folder in the order of its names' bytes.

    A file is a sample when its name has an image extension or its first bytes are an image's. Links
    to files are followed. Links to folders are followed once, where they lead out of what is listed
    anyway. The id is the path relative to the folder, after ``prefix``.
    """

    def __init__(
        self, root: str | bytes | os.PathLike[str], *, prefix: bytes = b"", scandir: Scandir = os.scandir
    ) -> None:
        self.ignored: Counter[str] = Counter()
        self._typed = os.fsencode(root)
        self._root = os.path.abspath(self._typed)  # a later chdir must not move the run
        self._prefix = prefix
        self._scandir = scandir

    def describe(self) -> str:
        return f"folder {shown(self._typed)}"

    def __iter__(self) -> Iterator[Sample | Failure]:
        walk = _Walk(self._root, self._prefix, self._scandir)
        self.ignored = walk.ignored
        return iter(walk)


class _Walk:
    """One pass over a folder tree."""

    def __init__(self, root: bytes, prefix: bytes, scandir: Scandir) -> None:
        self.ignored: Counter[str] = Counter()
        real = os.path.realpath(root)
        self._scandir = scandir
        self._listed = {real}
        self._folders = [_Folder(root, real, prefix, scandir)]

    def __iter__(self) -> Iterator[Sample | Failure]:
        while self._folders:
            folder = self._folders[-1]
            try:
                entry = next(folder.entries, None)
            except OSError as error:
                self._folders.pop()
                yield _unreadable(folder, error)
                continue
            if entry is None:
                self._folders.pop()
                continue
            found = self._visit(entry, folder)
            if found is not None:
                yield found

    def _visit(self, entry: Entry, folder: _Folder) -> Sample | Failure | None:
        name = entry.name
        reason = side_reason(name)
        if reason is not None:
            self.ignored[reason] += 1
            return None
        try:
            if entry.is_file(follow_symlinks=False):
                return sample_of_file(entry.path, folder.prefix + name, self.ignored)
            if entry.is_symlink():
                return self._link(entry.path, name, folder)
            if entry.is_dir(follow_symlinks=False):
                self._enter(entry.path, folder.real + name, folder.prefix + name + b"/")
                return None
        except OSError as error:
            return failure_from_os_error(error, id_from_bytes(folder.prefix + name), entry.path)
        self.ignored["pipe, socket or device"] += 1
        return None

    def _enter(self, path: bytes, real: bytes, prefix: bytes) -> None:
        if real in self._listed:
            self.ignored["folder that is listed already"] += 1
        else:
            self._folders.append(_Folder(path, real, prefix, self._scandir))

    def _link(self, path: bytes, name: bytes, folder: _Folder) -> Sample | Failure | None:
        raw_id = folder.prefix + name
        mode = mode_of_link(path, raw_id)
        if isinstance(mode, Failure):
            return mode
        if stat.S_ISREG(mode):
            return sample_of_file(path, raw_id, self.ignored)
        if not stat.S_ISDIR(mode):
            self.ignored["pipe, socket or device"] += 1
            return None
        real = os.path.realpath(path)
        if self._is_listed_anyway(real):
            self.ignored["link to a folder that is listed already"] += 1
            return None
        self._listed.add(real)
        self._folders.append(_Folder(path, real, raw_id + b"/", self._scandir))
        return None

    def _is_listed_anyway(self, real: bytes) -> bool:
        """Whether a folder lies in one that is listed, on a way with no hidden or side folder."""
        while real not in self._listed:
            parent, name = os.path.split(real)
            if parent == real or side_reason(name) is not None:
                return False
            real = parent
        return True


def _unreadable(folder: _Folder, error: OSError) -> Failure:
    sample_id = id_from_bytes(folder.prefix.rstrip(b"/") or b".")
    return failure_from_os_error(error, sample_id, folder.path, kind="unreadable")
