"""The bytes of one shard file: at any place where it is plain, front to back where it is compressed."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import stat
import zlib
from typing import Protocol

from ..errors import ReadError
from .files import read_error_from, read_first_bytes
from .ids import shown
from .tar_format import TarCutError, TarDamagedError

_SKIP_BYTES = 1 << 20


class PlainArchive:
    """Uncompressed archive, read in place by any thread; open as long as a sample of it lives."""

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        self.size = status.st_size

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def take(self, offset: int, count: int) -> bytes:
        """Bytes at ``offset``, fewer only at the end of the file; raises TarCutError behind it, or OSError."""
        if offset > self.size:
            raise TarCutError(self.size, "the end-of-archive marker is missing")
        data = os.pread(self._fd, count, offset)
        while len(data) < count and (more := os.pread(self._fd, count - len(data), offset + len(data))):
            data += more
        return data

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of one member; raises ReadError."""
        try:
            data = self.take(offset, count)
        except OSError as error:
            raise read_error_from(error, self._path) from error
        if len(data) < count:
            message = f"{shown(self._path)}: ends at byte {offset + len(data)}, inside a member"
            raise ReadError("shard_truncated", message, retryable=True)
        return data


class _Stream(Protocol):
    def read(self, count: int, /) -> bytes: ...

    def close(self) -> None: ...


class PackedArchive:
    """Compressed archive, read once from front to back; offsets are those of the unpacked bytes."""

    def __init__(self, file: _Stream) -> None:
        self._file = file
        self.position = 0
        self.cut = False

    def take(self, offset: int, count: int) -> bytes:
        """Bytes at ``offset``, fewer only at the end; raises TarCutError, TarDamagedError or OSError."""
        while self.position < offset:
            if not self._read(min(offset - self.position, _SKIP_BYTES)):
                raise TarCutError(self.position, "a member is cut")
        return self._read(count)

    def _read(self, count: int) -> bytes:
        parts: list[bytes] = []
        end = self.position + count
        while self.position < end and (part := self._part(min(end - self.position, _SKIP_BYTES))):
            parts.append(part)
            self.position += len(part)
        return b"".join(parts)

    def _part(self, count: int) -> bytes:
        try:
            return self._file.read(count)
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            # the stream stops before its own end: EOFError of the standard library, these words of pyarrow
            if isinstance(error, EOFError) or "Truncated compressed stream" in str(error):
                self.cut = True
                return b""
            raise TarDamagedError(self.position, f"the compressed stream is damaged ({error})") from error

    def close(self) -> None:
        self._file.close()


def open_archive(path: bytes) -> PlainArchive | PackedArchive:
    """Archive by its first bytes, whatever its name says; raises OSError."""
    start = read_first_bytes(path, 6)
    if start[:2] == b"\x1f\x8b":
        return PackedArchive(gzip.open(path))
    if start[:3] == b"BZh":
        return PackedArchive(bz2.open(path))
    if start == b"\xfd7zXZ\0":
        return PackedArchive(lzma.open(path))
    if start[:4] == b"\x28\xb5\x2f\xfd":
        return PackedArchive(_open_zstd(path))
    return PlainArchive(path)


def _open_zstd(path: bytes) -> _Stream:
    import pyarrow as pa  # half a second that only this format costs

    file: _Stream = pa.CompressedInputStream(pa.OSFile(path), "zstd")
    return file
