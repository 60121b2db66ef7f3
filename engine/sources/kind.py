"""What an INPUT is: told by its type on disk, its name and, where that says nothing, its first bytes."""

from __future__ import annotations

import os
import stat
from enum import StrEnum

from ..errors import InputNotFoundError, UsageError
from .files import read_first_bytes, reason_of
from .ids import shown
from .list import LIST_EXTENSIONS
from .location import is_url
from .pattern import is_pattern
from .sniff import extension_of, has_image_extension, looks_like_image

TAR_ENDINGS = (b".tar", b".tar.gz", b".tgz", b".tar.bz2", b".tbz2", b".tar.xz", b".txz", b".tar.zst", b".tzst")
PARQUET_ENDINGS = (b".parquet", b".pq")

_TAR_MAGIC_END = 262


class SourceKind(StrEnum):
    """What an INPUT is; ``auto`` looks at each."""

    AUTO = "auto"
    FOLDER = "folder"
    LIST = "list"
    GLOB = "glob"
    TAR = "tar"
    PARQUET = "parquet"
    IMAGE = "image"


def kind_of_input(path: bytes, asked: SourceKind) -> SourceKind:
    """Kind of an INPUT; raises InputNotFoundError where there is none, UsageError where it is not what was asked."""
    if is_url(path):
        return _kind_of_url(path)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if is_pattern(path) and asked in (SourceKind.AUTO, SourceKind.GLOB):
            return SourceKind.GLOB
        raise InputNotFoundError(
            f"No INPUT {shown(path)}: {reason_of(error)} (from {shown(os.getcwdb())}). Check the path and its rights."
        ) from error
    if stat.S_ISDIR(mode):
        return _agreed(path, SourceKind.FOLDER, asked)
    if not stat.S_ISREG(mode):
        raise UsageError(f"INPUT {shown(path)} is a pipe, socket or device. Save what it gives to a file first.")
    if asked in (SourceKind.AUTO, SourceKind.GLOB, SourceKind.FOLDER):
        return _agreed(path, _kind_of_file(path), asked)
    return asked


def _agreed(path: bytes, found: SourceKind, asked: SourceKind) -> SourceKind:
    if asked not in (SourceKind.AUTO, found):
        is_shard = asked in (SourceKind.TAR, SourceKind.PARQUET)
        hint = f"Give a pattern: '{shown(path)}/*.{asked}'." if is_shard else f"Leave out --kind, or say {found}."
        raise UsageError(f"INPUT {shown(path)} was to be of kind {asked}, but is of kind {found}. {hint}")
    return found


def _kind_of_url(path: bytes) -> SourceKind:
    name = path.partition(b"?")[0].lower()
    if name.endswith(TAR_ENDINGS + PARQUET_ENDINGS + (b"/",)) or extension_of(name) in LIST_EXTENSIONS:
        raise UsageError(
            f"INPUT {shown(path)}: a URL is read as one image, not as a folder, list or shard. "
            "Download it first, or give a list of image URLs."
        )
    return SourceKind.IMAGE


def _kind_of_file(path: bytes) -> SourceKind:
    name = path.lower()
    if has_image_extension(name):
        return SourceKind.IMAGE
    if name.endswith(TAR_ENDINGS):
        return SourceKind.TAR
    if name.endswith(PARQUET_ENDINGS):
        return SourceKind.PARQUET
    if extension_of(name) in LIST_EXTENSIONS:
        return SourceKind.LIST
    return _kind_of_content(path)


def _kind_of_content(path: bytes) -> SourceKind:
    try:
        start = read_first_bytes(path, _TAR_MAGIC_END)
    except OSError as error:
        raise InputNotFoundError(f"Cannot read INPUT {shown(path)}: {reason_of(error)}. Check its rights.") from error
    if looks_like_image(start):
        return SourceKind.IMAGE
    if start[:4] == b"PAR1":
        return SourceKind.PARQUET
    if start[257:262] == b"ustar":
        return SourceKind.TAR
    raise UsageError(
        f"INPUT {shown(path)} is no image, tar or Parquet file, and its name is not a list's "
        "(.txt, .lst, .csv, .tsv, .jsonl, .ndjson). Rename it, or say what it is with --kind."
    )
