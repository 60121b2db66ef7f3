"""Files of the plan cache on disk: whole or absent, and changed by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import VdaliError

TEMPORARY_SUFFIX = ".tmp"
LOCK_SUFFIX = ".lock"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_LOCKS_HERE = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS})


def write_atomically(path: Path, data: bytes) -> None:
    """Create or replace ``path``: afterwards it is whole and on disk, or as it was before.

    Raises VdaliError when the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)
        remedy = "Free some space (`vdali engines gc`)" if error.errno in _FULL else "Make its folder writable"
        raise VdaliError(
            f"Cannot write {path} ({len(data)} bytes): {error.strerror or error}. {remedy}, or name another folder "
            "(VDALI_CACHE is that of the plan cache)."
        ) from error


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path: Path, *, on_wait: Callable[[], object] | None = None) -> Iterator[bool]:
    """Hold the lock file ``path`` for the block, made when missing; True when it is held.

    With ``on_wait``, another holder is told of and waited for; without, the block gets False at once. A file system
    that has no locks counts as held: atomic renames keep both writers right. Raises OSError when the file cannot be
    made.
    """
    descriptor = _acquire(path, on_wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _acquire(path: Path, on_wait: Callable[[], object] | None) -> int | None:
    """Descriptor of the locked file; None when another holds it and nobody wants to wait."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            held = _lock(descriptor, on_wait)
            if not held:
                os.close(descriptor)
                return None
            if _is_same_file(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the holder deleted the file while this process waited: lock the new one


def _lock(descriptor: int, on_wait: Callable[[], object] | None) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if on_wait is None:
            return False
        on_wait()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
