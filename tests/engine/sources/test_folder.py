from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from vdali.engine.batch import Failure, Sample
from vdali.engine.errors import ReadError
from vdali.engine.sources.folder import FolderSource
from vdali.engine.sources.ids import bytes_from_id
from vdali.engine.sources.listing import CHUNK

JPEG = b"\xff\xd8\xff\xe0 not decoded here"


def _write(root: Path, *names: str, data: bytes = JPEG) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def _split(source: FolderSource) -> tuple[list[str], list[Failure]]:
    found = list(source)
    return [s.id for s in found if isinstance(s, Sample)], [f for f in found if isinstance(f, Failure)]


def _ids(root: Path) -> list[str]:
    ids, failures = _split(FolderSource(root))
    assert failures == []
    return ids


class FakeEntry:
    """One regular file of a listing that is on no disk."""

    __slots__ = ("name", "path")

    def __init__(self, folder: bytes, name: bytes) -> None:
        self.name = name
        self.path = folder + b"/" + name

    def is_file(self, *, follow_symlinks: bool) -> bool:
        return True


class FakeScandir:
    """A listing of ``count`` files, which breaks with ``error`` at its end; ``given`` counts the entries asked for."""

    def __init__(self, count: int, error: OSError | None = None) -> None:
        self.count = count
        self.error = error
        self.given = 0

    def __call__(self, folder: bytes) -> FakeScandir:
        self.entries = self._entries(folder)
        return self

    def _entries(self, folder: bytes) -> Iterator[FakeEntry]:
        for number in range(self.count):
            self.given += 1
            yield FakeEntry(folder, b"%07d.jpg" % ((number * 7919) % self.count))
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Iterator[FakeEntry]:
        return self.entries

    def __exit__(self, *exc: object) -> None:
        self.entries.close()


def test_hidden_and_side_files_are_ignored_and_counted(tmp_path: Path):
    _write(tmp_path, "1.jpg", "2.jpg", "._1.jpg", ".ipynb_checkpoints/1-checkpoint.jpg", "Thumbs.db")
    source = FolderSource(tmp_path)
    assert [s.id for s in source] == ["1.jpg", "2.jpg"]
    assert source.ignored.total() == 3
    assert source.ignored == {"side file": 2, "hidden": 1}


def test_all_levels_are_read_and_a_dead_link_becomes_a_failure(tmp_path: Path):
    root, outside = tmp_path / "in", tmp_path / "outside"
    _write(root, "root.jpg", "A/1.jpg", "A/B/2.jpg")
    (root / "C").mkdir()
    outside.mkdir()
    (root / "A" / "x.jpg").symlink_to("gone.jpg")
    (root / "link").symlink_to("A")
    (root / "A" / "loop").symlink_to(root)
    (root / "C" / "up").symlink_to("..")
    ids, failures = _split(FolderSource(root))
    assert ids == ["A/1.jpg", "A/B/2.jpg", "root.jpg"]
    assert [(f.id, f.stage, f.kind, f.retryable) for f in failures] == [("A/x.jpg", "source", "dead_link", False)]
    assert "gone.jpg" in failures[0].message


def test_a_link_to_itself_is_a_dead_link(tmp_path: Path):
    (tmp_path / "x.jpg").symlink_to("x.jpg")
    _, failures = _split(FolderSource(tmp_path))
    assert [(f.id, f.kind) for f in failures] == [("x.jpg", "dead_link")]
    assert "loop" in failures[0].message


def test_links_to_files_are_followed_and_read(tmp_path: Path):
    root = tmp_path / "in"
    _write(tmp_path, "store/blob", data=JPEG + b"!")
    root.mkdir()
    (root / "a.jpg").symlink_to(tmp_path / "store" / "blob")
    (root / "no_extension").symlink_to(tmp_path / "store" / "blob")
    samples = list(FolderSource(root))
    assert [s.id for s in samples] == ["a.jpg", "no_extension"]
    assert [s.read() for s in samples] == [JPEG + b"!"] * 2


def test_a_folder_outside_is_listed_once_however_many_links_lead_to_it(tmp_path: Path):
    root = tmp_path / "in"
    _write(tmp_path, "out/1.jpg", "out/sub/2.jpg", "in/0.jpg")
    (root / "a").symlink_to(tmp_path / "out" / "sub")
    (root / "b").symlink_to(tmp_path / "out")
    (root / "c").symlink_to(tmp_path / "out" / "sub")
    (tmp_path / "out" / "back").symlink_to(root)
    source = FolderSource(root)
    assert [s.id for s in source] == ["0.jpg", "a/2.jpg", "b/1.jpg"]
    assert source.ignored == {"folder that is listed already": 1, "link to a folder that is listed already": 2}


def test_a_link_to_a_folder_above_ends(tmp_path: Path):
    _write(tmp_path, "in/1.jpg", "beside/2.jpg")
    (tmp_path / "in" / "up").symlink_to(tmp_path)
    assert _ids(tmp_path / "in") == ["1.jpg", "up/beside/2.jpg"]


def test_a_link_into_a_hidden_folder_is_followed_since_nothing_else_lists_it(tmp_path: Path):
    _write(tmp_path, ".cache/data/1.jpg")
    (tmp_path / "data").symlink_to(".cache/data")
    (tmp_path / "same").symlink_to(".cache/data")
    assert _ids(tmp_path) == ["data/1.jpg"]


def test_a_hidden_input_is_read(tmp_path: Path):
    _write(tmp_path, ".photos/1.jpg", ".photos/A/2.jpg")
    (tmp_path / ".photos" / "again").symlink_to("A")
    assert _ids(tmp_path / ".photos") == ["1.jpg", "A/2.jpg"]


def test_extensions_in_any_case_and_content_without_extension_count(tmp_path: Path):
    _write(tmp_path, "a.JPG", "b.JpEg", "c", "d.dat")
    _write(tmp_path, "e.jpg", data=b"")
    _write(tmp_path, "f.txt", "g", data=b"text")
    source = FolderSource(tmp_path)
    assert [s.id for s in source] == ["a.JPG", "b.JpEg", "c", "d.dat", "e.jpg"]
    assert source.ignored == {"not an image (.txt)": 1, "not an image (no extension)": 1}


def test_a_folder_without_images_tells_what_it_holds(tmp_path: Path):
    _write(tmp_path, "a.txt", "b.txt", "c.pdf", data=b"text")
    source = FolderSource(tmp_path)
    assert list(source) == []
    assert source.ignored == {"not an image (.txt)": 2, "not an image (.pdf)": 1}


def test_names_that_are_no_utf_8_lead_back_to_their_bytes(tmp_path: Path):
    name = b"caf\xe9\\x.jpg"
    with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
        file.write(JPEG)
    os.symlink("gone", os.fsencode(tmp_path) + b"/dead\xff.jpg")
    ids, failures = _split(FolderSource(tmp_path))
    assert [bytes_from_id(i) for i in ids] == [name]
    assert [bytes_from_id(f.id) for f in failures] == [b"dead\xff.jpg"]
    failures[0].message.encode()


def test_pipes_are_never_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "link.jpg").symlink_to("pipe.jpg")
    source = FolderSource(tmp_path)
    assert list(source) == []
    assert source.ignored == {"pipe, socket or device": 2}


@pytest.mark.parametrize(("code", "retryable"), [(errno.EACCES, False), (errno.ESTALE, True), (errno.EIO, True)])
def test_a_folder_that_cannot_be_listed_becomes_a_failure(tmp_path: Path, code: int, retryable: bool):
    _write(tmp_path, "a/1.jpg", "b/2.jpg", "c/3.jpg")

    def scandir(folder: bytes) -> os._ScandirIterator[bytes]:
        if folder.endswith(b"/b"):
            raise OSError(code, os.strerror(code), folder)
        return os.scandir(folder)

    ids, failures = _split(FolderSource(tmp_path, scandir=scandir))
    assert ids == ["a/1.jpg", "c/3.jpg"]
    assert [(f.id, f.kind, f.retryable) for f in failures] == [("b", "unreadable", retryable)]
    assert os.strerror(code) in failures[0].message


def test_entries_before_a_broken_listing_are_kept():
    source = FolderSource("/fake", scandir=FakeScandir(10, OSError(errno.EIO, "broken")))
    ids, failures = _split(source)
    assert len(ids) == 10
    assert [(f.id, f.kind, f.retryable) for f in failures] == [(".", "unreadable", True)]


def test_a_path_too_long_for_the_system_becomes_a_failure(tmp_path: Path):
    at = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(20):
            os.mkdir("d" * 250)
            os.chdir("d" * 250)
    finally:
        os.chdir(at)
    ids, failures = _split(FolderSource(tmp_path))
    assert ids == []
    assert [f.kind for f in failures] == ["unreadable"]


def test_order_is_by_name_bytes_and_the_same_each_time(tmp_path: Path):
    _write(tmp_path, "b/1.jpg", "a.jpg", "B.jpg", "c.jpg", "ä.jpg", "b.jpg")
    expected = ["B.jpg", "a.jpg", "b/1.jpg", "b.jpg", "c.jpg", "ä.jpg"]
    source = FolderSource(tmp_path)
    assert [s.id for s in source] == expected
    assert [s.id for s in source] == expected


def test_ignored_counts_anew_in_each_pass(tmp_path: Path):
    _write(tmp_path, "a.txt", data=b"text")
    source = FolderSource(tmp_path)
    list(source)
    list(source)
    assert source.ignored.total() == 1


def test_two_passes_at_once_do_not_disturb_each_other(tmp_path: Path):
    _write(tmp_path, "a/1.jpg", "b/2.jpg")
    source = FolderSource(tmp_path)
    assert [(one.id, two.id) for one, two in zip(source, source, strict=True)] == [("a/1.jpg",) * 2, ("b/2.jpg",) * 2]


def test_a_prefix_starts_every_id(tmp_path: Path):
    _write(tmp_path, "1.jpg")
    (tmp_path / "x.jpg").symlink_to("gone")
    assert [s.id for s in FolderSource(tmp_path, prefix=b"A/")] == ["A/1.jpg", "A/x.jpg"]


def test_a_change_of_folder_does_not_move_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _write(tmp_path, "in/1.jpg", "in/A/2.jpg")
    monkeypatch.chdir(tmp_path)
    source = FolderSource("in")
    monkeypatch.chdir("/")
    assert [s.read() for s in source] == [JPEG, JPEG]


def test_very_deep_folders_are_walked(tmp_path: Path):
    deep = "/".join(["d"] * 900)
    _write(tmp_path, f"{deep}/1.jpg")
    assert _ids(tmp_path) == [f"{deep}/1.jpg"]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_million_entries_are_streamed():
    scandir = FakeScandir(1_000_000)
    before = peak = _resident_bytes()
    found = iter(FolderSource("/fake", scandir=scandir))
    first = next(found)
    assert first.id == f"{min((n * 7919) % 1_000_000 for n in range(CHUNK)):07d}.jpg"
    assert scandir.given <= CHUNK
    for seen, _ in enumerate(found, 2):
        if seen % 20_000 == 0:
            peak = max(peak, _resident_bytes())
    assert seen == 1_000_000
    assert peak - before < 50e6


def test_every_entry_of_a_listing_in_chunks_comes_once():
    count = 3 * CHUNK
    ids = [s.id for s in FolderSource("/fake", scandir=FakeScandir(count))]
    assert sorted(ids) == [f"{n:07d}.jpg" for n in range(count)]


def test_reading_tells_what_is_wrong(tmp_path: Path):
    _write(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    one, two, three = FolderSource(tmp_path)
    (tmp_path / "a.jpg").unlink()
    (tmp_path / "b.jpg").unlink()
    (tmp_path / "b.jpg").mkdir()
    (tmp_path / "c.jpg").unlink()
    os.mkfifo(tmp_path / "c.jpg")
    for sample, kind in ((one, "not_found"), (two, "is_a_folder"), (three, "not_a_file")):
        with pytest.raises(ReadError) as caught:
            sample.read()
        assert (caught.value.kind, caught.value.retryable) == (kind, False)


def test_the_shared_photos_are_all_found(shared_data: Path):
    source = FolderSource(shared_data / "photos")
    ids = [s.id for s in source]
    assert len(ids) == 47
    assert source.ignored == {"not an image (.txt)": 1}
