"""A folder and all folders below it."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from functools import partial

from ..batch import Failure, Sample
from .files import failure_from_os_error, read_file, read_first_bytes
from .ids import id_from_bytes, shown
from .listing import Entry, Scandir, sorted_entries
from .sniff import SNIFF_BYTES, count_not_image, has_image_extension, looks_like_image, side_reason


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
                return self._file(entry.path, name, folder)
            if entry.is_symlink():
                return self._link(entry.path, name, folder)
            if entry.is_dir(follow_symlinks=False):
                self._enter(entry.path, folder.real + name, folder.prefix + name + b"/")
                return None
        except OSError as error:
            return failure_from_os_error(error, id_from_bytes(folder.prefix + name), entry.path)
        self.ignored["pipe, socket or device"] += 1
        return None

    def _file(self, path: bytes, name: bytes, folder: _Folder) -> Sample | None:
        if has_image_extension(name) or self._is_image(path, name):
            return Sample(id_from_bytes(folder.prefix + name), partial(read_file, path))
        return None

    def _is_image(self, path: bytes, name: bytes) -> bool:
        try:
            found = looks_like_image(read_first_bytes(path, SNIFF_BYTES))
        except FileNotFoundError:
            self.ignored["gone while the folder was listed"] += 1
            return False
        if not found:
            count_not_image(self.ignored, name)
        return found

    def _enter(self, path: bytes, real: bytes, prefix: bytes) -> None:
        if real in self._listed:
            self.ignored["folder that is listed already"] += 1
        else:
            self._folders.append(_Folder(path, real, prefix, self._scandir))

    def _link(self, path: bytes, name: bytes, folder: _Folder) -> Sample | Failure | None:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return _dead_link(folder.prefix + name, path, error)
        if stat.S_ISREG(mode):
            return self._file(path, name, folder)
        if not stat.S_ISDIR(mode):
            self.ignored["pipe, socket or device"] += 1
            return None
        real = os.path.realpath(path)
        if self._is_listed_anyway(real):
            self.ignored["link to a folder that is listed already"] += 1
            return None
        self._listed.add(real)
        self._folders.append(_Folder(path, real, folder.prefix + name + b"/", self._scandir))
        return None

    def _is_listed_anyway(self, real: bytes) -> bool:
        """Whether a folder lies in one that is listed, on a way with no hidden or side folder."""
        while real not in self._listed:
            parent, name = os.path.split(real)
            if parent == real or side_reason(name) is not None:
                return False
            real = parent
        return True


def _dead_link(path_for_id: bytes, path: bytes, error: OSError) -> Failure:
    target = shown(os.readlink(path))
    why = "a loop of links" if error.errno == errno.ELOOP else "which does not exist"
    return Failure(id_from_bytes(path_for_id), "source", "dead_link", f"{shown(path)}: link to {target}, {why}")


def _unreadable(folder: _Folder, error: OSError) -> Failure:
    sample_id = id_from_bytes(folder.prefix.rstrip(b"/") or b".")
    return failure_from_os_error(error, sample_id, folder.path, kind="unreadable")
