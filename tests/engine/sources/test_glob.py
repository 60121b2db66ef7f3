from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vdali.engine.batch import Failure, Sample
from vdali.engine.errors import InputNotFoundError
from vdali.engine.sources.open import open_source
from vdali.engine.sources.pattern import Pattern

JPEG = b"\xff\xd8\xff\xe0"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "1.jpg",
        "2.JPG",
        "10.png",
        "a/3.jpg",
        "a/b/4.jpg",
        "a/b/c/5.jpg",
        "x/b/6.jpg",
        ".h/7.jpg",
        "a/.8.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(JPEG)
    (tmp_path / "n.txt").write_text("text")
    (tmp_path / "é.jpg").write_bytes(JPEG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jpg", ["1.jpg", "é.jpg"]),
        ("?.jpg", ["1.jpg", "é.jpg"]),
        ("*", ["1.jpg", "10.png", "2.JPG", "é.jpg"]),
        ("[12]*", ["1.jpg", "10.png", "2.JPG"]),
        ("[!1]*.[jJ]*", ["2.JPG", "é.jpg"]),
        ("a/*", ["a/3.jpg"]),
        ("*/*/*.jpg", ["a/b/4.jpg", "x/b/6.jpg"]),
        ("*/b/*.jpg", ["a/b/4.jpg", "x/b/6.jpg"]),
        ("**/*.jpg", ["1.jpg", "a/3.jpg", "a/b/4.jpg", "a/b/c/5.jpg", "x/b/6.jpg", "é.jpg"]),
        ("a/**", ["a/3.jpg", "a/b/4.jpg", "a/b/c/5.jpg"]),
        ("**/b/**/*.jpg", ["a/b/4.jpg", "a/b/c/5.jpg", "x/b/6.jpg"]),
        ("**/**/4.jpg", ["a/b/4.jpg"]),
        (".h/*", [".h/7.jpg"]),
        ("./a/*.jpg", ["./a/3.jpg"]),
        ("a//b/*", ["a//b/4.jpg"]),
    ],
)
def test_a_pattern_finds_what_a_shell_would(tree: Path, pattern: str, expected: list[str]):
    found = list(open_source(pattern))
    assert [s.id for s in found] == expected
    assert all(s.read() == JPEG for s in found)


def test_an_absolute_pattern_gives_absolute_ids(tree: Path):
    assert [s.id for s in open_source(f"{tree}/a/*.jpg")] == [f"{tree}/a/3.jpg"]


def test_a_pattern_at_the_root_of_the_file_system_is_found(tree: Path):
    assert Pattern(b"/*/x").folder == b"/"
    top = tree.parts[1]
    pattern = f"/{top[0]}*/" + "/".join(tree.parts[2:]) + "/1.jpg"
    assert [s.id for s in open_source(pattern)] == [f"{tree}/1.jpg"]


def test_a_pattern_goes_on_where_it_started_after_a_change_of_folder(tree: Path, monkeypatch: pytest.MonkeyPatch):
    source = open_source("*/*.jpg")
    monkeypatch.chdir("/")
    assert [s.read() for s in source] == [JPEG]


def test_what_matches_and_is_no_image_is_counted(tree: Path):
    os.mkfifo(tree / "pipe")
    (tree / "Thumbs.db").touch()
    source = open_source("*")
    list(source)
    assert source.ignored == {
        "not an image (.txt)": 1,
        "folder (a final /** goes into it)": 2,
        "pipe, socket or device": 1,
        "side file": 1,
    }


def test_links_that_match_are_followed_and_dead_ones_are_failures(tree: Path):
    (tree / "l1.jpg").symlink_to("a/3.jpg")
    (tree / "l2.jpg").symlink_to("gone.jpg")
    (tree / "l3.jpg").symlink_to("l3.jpg")
    (tree / "up").symlink_to(".")
    found = list(open_source("l*"))
    assert [(type(e), e.id) for e in found] == [(Sample, "l1.jpg"), (Failure, "l2.jpg"), (Failure, "l3.jpg")]
    assert {e.kind for e in found[1:]} == {"dead_link"}
    source = open_source("**/[1-9].jpg")
    assert [s.id for s in source] == ["1.jpg", "a/3.jpg", "a/b/4.jpg", "a/b/c/5.jpg", "x/b/6.jpg"]
    assert source.ignored == {"folder (a final /** goes into it)": 1}
    assert [s.id for s in open_source("up/*.jpg")] == ["up/1.jpg", "up/l1.jpg", "up/l2.jpg", "up/l3.jpg", "up/é.jpg"]


def test_shards_that_match_are_opened(tree: Path):
    for number in range(3):
        with tarfile.open(tree / f"s{number}.tar", "w") as tar:
            info = tarfile.TarInfo("x.jpg")
            info.size = 4
            tar.addfile(info, io.BytesIO(JPEG))
            tar.addfile(tarfile.TarInfo("x.json"))
        pq.write_table(pa.table({"id": ["same"], "image": [JPEG]}), tree / f"t{number}.parquet")
    (tree / "s1.tar").write_bytes(b"cut")
    source = open_source("s?.tar")
    assert [(type(e), e.id) for e in source] == [
        (Sample, "s0.tar::x.jpg"),
        (Failure, "s1.tar"),
        (Sample, "s2.tar::x.jpg"),
    ]
    assert source.ignored == {"not an image (.json)": 2}
    assert [(type(e), e.id) for e in open_source("*.parquet")] == [(Sample, "same")] + [(Failure, "same")] * 2


def test_a_name_with_brackets_is_a_name_where_it_exists(tree: Path):
    (tree / "[1].jpg").write_bytes(b"own")
    assert [s.read() for s in open_source("[1].jpg")] == [b"own"]


def test_a_pattern_in_a_folder_that_is_not_there_is_not_found(tree: Path):
    with pytest.raises(InputNotFoundError, match="there is no folder"):
        open_source("gone/*.jpg")


def test_a_pattern_that_matches_nothing_has_no_entries(tree: Path):
    source = open_source("*.webp")
    assert list(source) == []
    assert source.describe() == "files that match *.webp"
