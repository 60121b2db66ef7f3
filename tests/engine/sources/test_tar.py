from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdali.engine.batch import Failure, Sample
from vdali.engine.errors import ReadError
from vdali.engine.sources.files import MAX_BYTES
from vdali.engine.sources.ids import bytes_from_id, split_member_id
from vdali.engine.sources.tar import TarSource
from vdali.engine.sources.tar_format import MAX_EXTENSION_BYTES

JPEG = b"\xff\xd8\xff\xe0"


def _picture(number: int, size: int = 3000) -> bytes:
    return JPEG + random.Random(number).randbytes(size)


def _tar(members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(data)
    return bytes(sink.getvalue())


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tar.gz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.xz": lzma.compress,
    "tar.zst": _zstd,
}
PAIRS = {f"{n}.{ext}": (_picture(n) if ext == "jpg" else b"{}") for n in range(3) for ext in ("jpg", "json")}


def _source(tmp_path: Path, data: bytes, name: str = "s.tar") -> TarSource:
    (tmp_path / name).write_bytes(data)
    return TarSource(tmp_path / name, name=name.encode())


def _split(source: TarSource) -> tuple[dict[str, bytes], list[Failure]]:
    found = list(source)
    samples = [s for s in found if isinstance(s, Sample)]
    assert found[: len(samples)] == samples, "a shard failure comes last"
    return {s.id: s.read() for s in samples}, [f for f in found if isinstance(f, Failure)]


def _own(info: tarfile.TarInfo, data: bytes = b"") -> bytes:
    """One member with its padding, for archives that tarfile does not write."""
    return info.tobuf(tarfile.USTAR_FORMAT) + data + b"\0" * (-len(data) % 512)


def _info(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


END = b"\0" * 1024


@pytest.mark.parametrize("kind", PACKERS)
def test_images_of_a_shard_are_samples_and_side_members_are_counted(tmp_path: Path, kind: str):
    source = _source(tmp_path, PACKERS[kind](_tar(PAIRS)), f"s.{kind}")
    contents, failures = _split(source)
    assert failures == []
    assert contents == {f"s.{kind}::{n}.jpg": _picture(n) for n in range(3)}
    assert source.ignored == {"not an image (.json)": 3}


@pytest.mark.parametrize("kind", PACKERS)
def test_compression_is_told_by_content_not_by_name(tmp_path: Path, kind: str):
    contents, failures = _split(_source(tmp_path, PACKERS[kind](_tar(PAIRS)), "any.tar"))
    assert (len(contents), failures) == (3, [])


def test_dots_in_names_and_folders_do_not_matter(tmp_path: Path):
    members = {
        "shot 2.0 x.jpg": _picture(1),
        "shot 2.0 x.json": b"{}",
        "train.v1/0001.jpg": _picture(2),
        "train.v1/0001.cls": b"7",
    }
    contents, failures = _split(_source(tmp_path, _tar(members)))
    assert failures == []
    assert contents == {"s.tar::shot 2.0 x.jpg": _picture(1), "s.tar::train.v1/0001.jpg": _picture(2)}


def test_an_image_without_extension_is_found_by_content(tmp_path: Path):
    for kind, pack in PACKERS.items():
        source = _source(tmp_path, pack(_tar({"a": _picture(1), "b": b"text", "c.tiny": b"", "d": _picture(2)})), kind)
        assert _split(source) == ({f"{kind}::a": _picture(1), f"{kind}::d": _picture(2)}, [])
        assert source.ignored == {"not an image (no extension)": 1, "not an image (.tiny)": 1}


def test_hidden_and_side_members_are_ignored(tmp_path: Path):
    members = {
        "./a.jpg": _picture(1),
        "./._a.jpg": b"x",
        ".git/b.jpg": b"x",
        "__MACOSX/c.jpg": b"x",
        "d/Thumbs.db": b"x",
    }
    source = _source(tmp_path, _tar(members))
    assert _split(source) == ({"s.tar::./a.jpg": _picture(1)}, [])
    assert source.ignored == {"side file": 3, "hidden": 1}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_whole(tmp_path: Path, form: int):
    long = "d" * 150 + "/" + "x" * 90 + ".jpg" if form == tarfile.USTAR_FORMAT else "ü/" * 200 + "x" * 200 + ".jpg"
    contents, failures = _split(
        _source(tmp_path, _tar({"a.jpg": _picture(1), long: _picture(2), "b.jpg": _picture(3)}, form))
    )
    assert failures == []
    assert contents == {"s.tar::a.jpg": _picture(1), f"s.tar::{long}": _picture(2), "s.tar::b.jpg": _picture(3)}


def test_what_gnu_tar_writes_is_read(tmp_path: Path):
    folder = tmp_path / "in"
    (folder / "A").mkdir(parents=True)
    (folder / "A" / ("x" * 150 + ".jpg")).write_bytes(_picture(1))
    (folder / "b.jpg").write_bytes(_picture(2))
    with open(os.fsencode(folder) + b"/caf\xe9.jpg", "wb") as file:
        file.write(_picture(3))
    os.link(folder / "b.jpg", folder / "c.jpg")
    for form in ("gnu", "oldgnu", "pax", "posix", "ustar", "v7"):
        shard = tmp_path / f"{form}.tar"
        done = subprocess.run(
            ["tar", f"--format={form}", "--sort=name", "-C", folder, "-cf", shard, "."],
            capture_output=True,
            check=False,
        )
        contents, failures = _split(TarSource(shard, name=b"s"))
        assert failures == []
        names = {split_member_id(sample_id)[1]: data for sample_id, data in contents.items()}
        expected = {b"./b.jpg": _picture(2), b"./c.jpg": _picture(2), b"./caf\xe9.jpg": _picture(3)}
        if form not in ("v7", "ustar") or done.returncode == 0:
            expected[b"./A/" + b"x" * 150 + b".jpg"] = _picture(1)
        assert names == expected


def test_times_in_an_old_gnu_header_are_no_part_of_the_name(tmp_path: Path):
    block = bytearray(_info("a.jpg", size=4).tobuf(tarfile.GNU_FORMAT))
    assert block[257:265] == b"ustar  \0"
    block[345:357] = b"14712345670\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    contents, failures = _split(_source(tmp_path, bytes(block) + JPEG + bytes(508) + END))
    assert (contents, failures) == ({"s.tar::a.jpg": JPEG}, [])


def test_names_that_are_no_utf_8_lead_back_to_their_bytes(tmp_path: Path):
    name = b"caf\xe9::\\x.jpg"
    data = _tar({name.decode("utf-8", "surrogateescape"): _picture(1)}, tarfile.GNU_FORMAT)
    (sample_id,), failures = _split(_source(tmp_path, data, "a::b.tar"))
    assert failures == []
    assert split_member_id(sample_id) == (b"a::b.tar", name)
    assert bytes_from_id(sample_id) == b"a::b.tar::" + name


def _whole(cut: int) -> int:
    """How many pictures of PAIRS are whole in the first ``cut`` bytes of their tar."""
    jpg = 512 + 3072  # header and 3,004 bytes of data, padded
    return sum(cut >= n * (jpg + 1024) + 512 + 3004 for n in range(3))


def test_a_cut_shard_keeps_its_whole_members_and_records_one_failure(tmp_path: Path):
    data = _tar(PAIRS)
    end = len(data.rstrip(b"\0")) + 3 * 512
    for cut in [*range(513, end - 1024, 419), 3516, 3517, 3584, 3585, 4096, 4608, 5120, 8124]:
        contents, failures = _split(_source(tmp_path, data[:cut]))
        assert list(contents) == [f"s.tar::{n}.jpg" for n in range(_whole(cut))]
        assert [(f.id, f.stage, f.kind, f.retryable) for f in failures] == [
            ("s.tar", "source", "shard_truncated", True)
        ]
        assert f"byte {cut}" in failures[0].message


def test_a_shard_without_end_marker_is_taken_as_cut(tmp_path: Path):
    data = _own(_info("0.jpg", size=3004), _picture(0))
    contents, failures = _split(_source(tmp_path, data))
    assert list(contents) == ["s.tar::0.jpg"]
    assert [f.kind for f in failures] == ["shard_truncated"]
    assert "end-of-archive marker is missing" in failures[0].message
    assert _split(_source(tmp_path, data + bytes(512)))[1] == []


@pytest.mark.parametrize("kind", ["tar.gz", "tar.bz2", "tar.xz", "tar.zst"])
def test_a_cut_compressed_shard_keeps_its_whole_members(tmp_path: Path, kind: str):
    packed = PACKERS[kind](_tar(PAIRS))
    for cut in (len(packed) // 3, len(packed) // 2, len(packed) - 10):
        contents, failures = _split(_source(tmp_path, packed[:cut]))
        assert all(contents[f"s.tar::{n}.jpg"] == _picture(n) for n in range(len(contents)))
        assert [(f.id, f.kind, f.retryable) for f in failures] == [("s.tar", "shard_truncated", True)]
        if kind == "tar.gz":
            assert len(contents) == _whole(len(zlib.decompressobj(31).decompress(packed[:cut])))


def test_damaged_compressed_data_are_one_failure(tmp_path: Path):
    packed = bytearray(gzip.compress(_tar(PAIRS)))
    packed[-8:-4] = b"\0\0\0\0"
    contents, failures = _split(_source(tmp_path, bytes(packed)))
    assert len(contents) == 3
    assert [f.kind for f in failures] == ["shard_damaged"]


def test_a_damaged_header_ends_a_shard_with_a_failure(tmp_path: Path):
    data = bytearray(_tar(PAIRS))
    data[4608] ^= 0xFF
    contents, failures = _split(_source(tmp_path, bytes(data)))
    assert list(contents) == ["s.tar::0.jpg"]
    assert [(f.kind, f.retryable) for f in failures] == [("shard_damaged", True)]
    assert "byte 4608" in failures[0].message


@pytest.mark.parametrize(
    "data", [b"", b"<html>not found</html>", random.Random(0).randbytes(5000), gzip.compress(b"text" * 999)]
)
def test_a_file_that_is_no_tar_is_one_failure(tmp_path: Path, data: bytes):
    contents, failures = _split(_source(tmp_path, data))
    assert contents == {}
    assert [(f.id, f.kind) for f in failures] == [("s.tar", "shard_unreadable")]


def test_a_shard_that_is_not_there_is_one_failure(tmp_path: Path):
    for path in (tmp_path / "gone.tar", tmp_path):
        _, failures = _split(TarSource(path, name=b"s.tar"))
        assert [(f.id, f.kind, f.retryable) for f in failures] == [("s.tar", "shard_unreadable", False)]


def test_an_empty_archive_has_no_samples(tmp_path: Path):
    assert _split(_source(tmp_path, _tar({}))) == ({}, [])


def test_archives_joined_by_cat_are_not_lost_silently(tmp_path: Path):
    contents, failures = _split(_source(tmp_path, _tar({"a.jpg": _picture(1)}) + _tar({"b.jpg": _picture(2)})))
    assert list(contents) == ["s.tar::a.jpg"]
    assert [f.kind for f in failures] == ["shard_tail"]


def test_links_inside_a_shard_give_the_bytes_of_their_target(tmp_path: Path):
    data = (
        _own(_info("a/forward.jpg", type=tarfile.SYMTYPE, linkname="../b/real.jpg"))
        + _own(_info("b/real.jpg", size=3004), _picture(1))
        + _own(_info("hard.jpg", type=tarfile.LNKTYPE, linkname="b/real.jpg", size=3004))
        + _own(_info("twice.jpg", type=tarfile.SYMTYPE, linkname="./hard.jpg"))
        + _own(_info("text", type=tarfile.SYMTYPE, linkname="note.txt"))
        + _own(_info("note.txt", size=4), b"note")
        + END
    )
    source = _source(tmp_path, data)
    contents, failures = _split(source)
    assert failures == []
    names = ["a/forward.jpg", "b/real.jpg", "hard.jpg", "twice.jpg"]
    assert contents == {f"s.tar::{name}": _picture(1) for name in names}
    assert source.ignored == {"not an image (no extension)": 1, "not an image (.txt)": 1}


@pytest.mark.parametrize("target", ["gone.jpg", "/etc/passwd", "../../x.jpg", "loop.jpg"])
def test_a_link_that_leads_nowhere_in_the_shard_becomes_a_failure(tmp_path: Path, target: str):
    data = _own(_info("loop.jpg", type=tarfile.SYMTYPE, linkname=target)) + END
    found = list(_source(tmp_path, data))
    assert [(f.id, f.kind) for f in found] == [("s.tar::loop.jpg", "dead_link")]


def test_an_absolute_link_is_not_taken_for_a_member_of_that_name(tmp_path: Path):
    data = _own(_info("data/x.jpg", size=4), JPEG)
    data += _own(_info("l.jpg", type=tarfile.SYMTYPE, linkname="/data/x.jpg")) + END
    assert [(e.id, type(e)) for e in _source(tmp_path, data)] == [
        ("s.tar::data/x.jpg", Sample),
        ("s.tar::l.jpg", Failure),
    ]


def test_a_size_too_large_for_a_header_is_taken_from_pax(tmp_path: Path):
    value = b"13 size=3004\n"
    data = _own(_info("pax", type=tarfile.XHDTYPE, size=len(value)), value)
    data += _info("a.jpg", size=0).tobuf(tarfile.USTAR_FORMAT) + _picture(1) + bytes(68)
    data += _own(_info("b.jpg", size=4), JPEG) + END
    assert _split(_source(tmp_path, data)) == ({"s.tar::a.jpg": _picture(1), "s.tar::b.jpg": JPEG}, [])


def test_a_link_in_a_compressed_shard_becomes_a_failure(tmp_path: Path):
    data = _own(_info("a.jpg", size=3004), _picture(1)) + _own(_info("b.jpg", type=tarfile.LNKTYPE, linkname="a.jpg"))
    found = list(_source(tmp_path, gzip.compress(data + END)))
    assert [getattr(f, "kind", "sample") for f in found] == ["sample", "link_member"]


def test_a_sparse_member_never_gives_wrong_bytes(tmp_path: Path):
    with (tmp_path / "holes.jpg").open("wb") as file:
        for place in range(0, 60 << 16, 1 << 16):  # more holes than one header holds
            file.seek(place)
            file.write(JPEG * 1024)
    (tmp_path / "z.jpg").write_bytes(_picture(1))
    for form in ("gnu", "pax"):
        shard = tmp_path / f"{form}.tar"
        subprocess.run(
            ["tar", f"--format={form}", "-S", "-C", tmp_path, "-cf", shard, "holes.jpg", "z.jpg"], check=True
        )
        failure, sample = TarSource(shard, name=b"s.tar")
        assert isinstance(failure, Failure)
        assert (failure.id, failure.kind) == ("s.tar::holes.jpg", "sparse_member")
        assert isinstance(sample, Sample)
        assert (sample.id, sample.read()) == ("s.tar::z.jpg", _picture(1))


def test_a_member_too_large_to_read_becomes_a_failure(tmp_path: Path):
    header = _info("huge.jpg", size=MAX_BYTES + 1).tobuf(tarfile.GNU_FORMAT)
    with (tmp_path / "s.tar").open("wb") as file:
        file.write(header)
        file.truncate(512 + MAX_BYTES + 512)
        file.seek(0, os.SEEK_END)
        file.write(_own(_info("z.jpg", size=4), JPEG) + END)
    failure, sample = TarSource(tmp_path / "s.tar", name=b"s.tar")
    assert isinstance(failure, Failure)
    assert failure.kind == "too_large"
    assert sample.id == "s.tar::z.jpg"


def test_a_header_that_asks_for_endless_memory_is_damage(tmp_path: Path):
    data = _own(_info("a.jpg", size=4), JPEG)
    data += _info("long", type=tarfile.GNUTYPE_LONGNAME, size=MAX_EXTENSION_BYTES + 1).tobuf(tarfile.GNU_FORMAT)
    contents, failures = _split(_source(tmp_path, data + bytes(MAX_EXTENSION_BYTES * 2)))
    assert list(contents) == ["s.tar::a.jpg"]
    assert [f.kind for f in failures] == ["shard_damaged"]


def test_a_shard_shortened_after_it_was_listed_fails_in_reading(tmp_path: Path):
    (sample,) = _source(tmp_path, _tar({"a.jpg": _picture(1)}))
    os.truncate(tmp_path / "s.tar", 1000)
    with pytest.raises(ReadError) as caught:
        sample.read()
    assert (caught.value.kind, caught.value.retryable) == ("shard_truncated", True)


def test_a_shard_replaced_after_it_was_listed_still_gives_its_own_bytes(tmp_path: Path):
    (sample,) = _source(tmp_path, _tar({"a.jpg": _picture(1)}))
    (tmp_path / "other").write_bytes(_tar({"b.jpg": _picture(2)}))
    os.replace(tmp_path / "other", tmp_path / "s.tar")
    assert sample.read() == _picture(1)


def test_descriptors_close_with_the_last_sample(tmp_path: Path):
    before = len(os.listdir("/proc/self/fd"))
    for kind, pack in PACKERS.items():
        source = _source(tmp_path, pack(_tar(PAIRS)), kind)
        assert len(list(source)) == 3
        half = iter(source)
        next(half)
        del half
    assert len(os.listdir("/proc/self/fd")) == before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damage_raises_or_gives_another_members_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    raw = bytearray(_tar(PAIRS))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    path = tmp_path_factory.mktemp("damage") / "s.tar"
    path.write_bytes(raw[:cut])
    found = list(TarSource(path, name=b"s.tar"))
    for entry in found:
        entry.id.encode()
        if isinstance(entry, Sample):
            assert entry.read() in bytes(raw)
