"""Reading of local files, and what each failure of the operating system means for a sample."""

from __future__ import annotations

import errno
import os
import stat

from ..batch import Failure
from ..errors import ReadError
from .ids import shown

MAX_BYTES = 2**31 - 4096
"""Largest encoded picture that is read, in bytes: as much as Linux gives in one read."""

_KINDS = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EISDIR: "is_a_folder",
    errno.ELOOP: "dead_link",
    errno.ENAMETOOLONG: "name_too_long",
    errno.EMFILE: "too_many_open_files",
    errno.ENFILE: "too_many_open_files",
    errno.ENOMEM: "out_of_memory",
    errno.ETIMEDOUT: "timeout",
}
_PERMANENT = frozenset(
    [
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.ENXIO,
        errno.ENODEV,
        errno.EOVERFLOW,
    ]
)


def kind_of(error: OSError) -> str:
    return _KINDS.get(error.errno or 0, "io_error")


def is_retryable(error: OSError) -> bool:
    """Whether the same call may succeed later: all but wrong names, wrong types and missing rights."""
    return error.errno not in _PERMANENT


def read_error_from(error: OSError, path: bytes) -> ReadError:
    """ReadError of one file, with the system's reason."""
    return ReadError(kind_of(error), f"{shown(path)}: {reason_of(error)}", retryable=is_retryable(error))


def failure_from_os_error(error: OSError, sample_id: str, path: bytes, *, kind: str | None = None) -> Failure:
    """Failure, of stage source, of an entry that could not be looked at."""
    message = f"{shown(path)}: {reason_of(error)}"
    return Failure(sample_id, "source", kind or kind_of(error), message, is_retryable(error))


def reason_of(error: OSError) -> str:
    """System's words for an error, without the file name that Python adds in its own notation."""
    return error.strerror or str(error) or type(error).__name__


def read_file(path: bytes) -> bytes:
    """Whole content of a regular file; raises ReadError. Never blocks on a pipe or a device."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise read_error_from(error, path) from error
    try:
        size = _checked_size(os.fstat(fd), path)
        data = os.read(fd, size)
        if len(data) != size:
            data = _rest(fd, data, size)
    except OSError as error:
        raise read_error_from(error, path) from error
    except MemoryError as error:
        raise ReadError("out_of_memory", f"{shown(path)}: no memory for its {size} bytes", retryable=True) from error
    finally:
        os.close(fd)
    return data


def read_first_bytes(path: bytes, count: int) -> bytes:
    """First bytes of a file, fewer where it is shorter; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(fd, count)
    finally:
        os.close(fd)


def _checked_size(status: os.stat_result, path: bytes) -> int:
    if stat.S_ISDIR(status.st_mode):
        raise ReadError("is_a_folder", f"{shown(path)}: is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise ReadError("not_a_file", f"{shown(path)}: is a pipe, socket or device, not a file")
    if status.st_size > MAX_BYTES:
        raise ReadError("too_large", f"{shown(path)}: {status.st_size} bytes, more than the {MAX_BYTES} that are read")
    return status.st_size


def _rest(fd: int, data: bytes, size: int) -> bytes:
    parts = [data]
    left = size - len(data)
    while left > 0 and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
