from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from vdali.engine.errors import ReadError
from vdali.engine.sources.files import MAX_BYTES, failure_from_os_error, read_error_from, read_file, read_first_bytes


def test_a_file_is_read_whole(tmp_path: Path):
    data = os.urandom(3_000_001)
    (tmp_path / "a").write_bytes(data)
    assert read_file(os.fsencode(tmp_path / "a")) == data
    assert read_first_bytes(os.fsencode(tmp_path / "a"), 32) == data[:32]


def test_an_empty_file_gives_no_bytes_and_no_error(tmp_path: Path):
    (tmp_path / "a").touch()
    assert read_file(os.fsencode(tmp_path / "a")) == b""


def test_a_file_too_large_for_one_read_is_refused_before_it_is_read(tmp_path: Path):
    with (tmp_path / "a").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ReadError, match="bytes, more than") as caught:
        read_file(os.fsencode(tmp_path / "a"))
    assert (caught.value.kind, caught.value.retryable) == ("too_large", False)


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (errno.ENOENT, "not_found", False),
        (errno.EACCES, "permission", False),
        (errno.ENAMETOOLONG, "name_too_long", False),
        (errno.EIO, "io_error", True),
        (errno.ESTALE, "io_error", True),
        (errno.ETIMEDOUT, "timeout", True),
        (errno.EMFILE, "too_many_open_files", True),
        (errno.ENOMEM, "out_of_memory", True),
    ],
)
def test_each_system_error_has_a_kind(code: int, kind: str, retryable: bool):
    error = read_error_from(OSError(code, os.strerror(code), b"\xff"), b"a/\xff.jpg")
    assert (error.kind, error.retryable) == (kind, retryable)
    assert str(error) == f"a/\\xff.jpg: {os.strerror(code)}"
    failure = failure_from_os_error(OSError(code, os.strerror(code)), "x", b"x")
    assert (failure.stage, failure.kind, failure.retryable) == ("source", kind, retryable)


def test_no_descriptor_stays_open(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        read_file(os.fsencode(tmp_path / "a"))
        with pytest.raises(ReadError):
            read_file(os.fsencode(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before
