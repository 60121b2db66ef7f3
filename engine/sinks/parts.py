"""Part files that survive a kill and a power cut: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import OutputError, VdaliError

TEMPORARY_PREFIX = ".tmp-"
"""pyarrow passes over names that start with a dot, so a dataset never shows half a file."""

ROWS = "rows"
FAILURES = "failures"

_PART = re.compile(r"part-(\d{5,})\.(.+)")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError on ``path`` into a VdaliError that says what to do."""
    try:
        yield
    except OSError as error:
        remedy = "Free some space" if error.errno in _FULL else "Make sure that it can be written"
        raise VdaliError(
            f"Cannot write {path}: {error.strerror or error}. {remedy}, then run the same command again: it goes on "
            "after the last committed part."
        ) from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading part file ``path`` into an OutputError that says what to do."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise OutputError(
            f"Part file {path} is not readable: {reason}. Restore it from a copy, or delete "
            f"{path.with_name(path.name.split('.')[0])}.* to have its samples inferred again."
        ) from error


def write_durably(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Create or replace ``path``: afterwards it is whole and on disk, or as it was before.

    Raises VdaliError when the disk is full or fails.
    """
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to tell; opening removes leftovers too
                os.unlink(temporary)
            raise
        fsync_folder(path.parent)


def delete_durably(path: Path) -> None:
    """Delete ``path``, on disk too; raises VdaliError when that fails."""
    with writing(path):
        os.unlink(path)
        fsync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Create ``path`` and its parents where absent, on disk too.

    Raises OutputError where a file is in the way, VdaliError when creating fails.
    """
    if path.is_dir():
        return
    if os.path.lexists(path):
        raise OutputError(f"{path} is not a folder. Choose another output folder.")
    make_folder(path.parent)
    with writing(path):
        path.mkdir(exist_ok=True)
        fsync_folder(path.parent)


def fsync_folder(path: Path) -> None:
    """Make the names in folder ``path`` durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in folder.glob(TEMPORARY_PREFIX + "*"):
        with writing(path):
            path.unlink()


def part_name(number: int, suffix: str) -> str:
    return f"part-{number:05d}.{suffix}"


def parts_of(folder: Path, suffix: str) -> dict[int, Path]:
    """Committed part files by number, in order; ``suffix`` is all after the first dot."""
    parts: dict[int, Path] = {}
    for path in folder.glob("part-*"):
        match = _PART.fullmatch(path.name)
        if match and match[2] == suffix:
            parts[int(match[1])] = path
    return dict(sorted(parts.items()))


def row_count(path: Path) -> int:
    """Number of rows of a part file, from its footer; raises OutputError when it is not readable."""
    with reading(path):
        return int(pq.read_metadata(path).num_rows)
