from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vdali.engine.batch import Failure, Sample
from vdali.engine.errors import InputNotFoundError, UsageError
from vdali.engine.sources.kind import SourceKind
from vdali.engine.sources.open import open_source
from vdali.engine.sources.shard import Shard

JPEG = b"\xff\xd8\xff\xe0"


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("A/1.jpg", "A/s/2.jpg", "B/1.jpg", "x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "A" / "l.txt").write_text("1.jpg\ns/2.jpg\n")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        info = tarfile.TarInfo("m.jpg")
        info.size = 4
        tar.addfile(info, io.BytesIO(JPEG))
    pq.write_table(pa.table({"image": [JPEG, JPEG]}), tmp_path / "p.parquet")
    pq.write_table(pa.table({"path": ["A/1.jpg"]}), tmp_path / "paths.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A", ["1.jpg", "s/2.jpg"]),
        ("A/", ["1.jpg", "s/2.jpg"]),
        ("A/l.txt", ["1.jpg", "s/2.jpg"]),
        ("A/*.jpg", ["A/1.jpg"]),
        ("t.tar", ["t.tar::m.jpg"]),
        ("p.parquet", ["p.parquet::0", "p.parquet::1"]),
        ("paths.parquet", ["A/1.jpg"]),
        ("x.jpg", ["x.jpg"]),
        ("./x.jpg", ["./x.jpg"]),
    ],
)
def test_each_input_is_told_by_what_it_is(inputs: Path, name: str, expected: list[str]):
    for given in (name, [name], [Path(name)] if name == os.fspath(Path(name)) else [name]):
        assert [s.id for s in open_source(given)] == expected


def test_every_id_of_several_inputs_leads_to_its_file_and_none_comes_twice(inputs: Path):
    names = ["A", "B", "x.jpg", "t.tar", "A/l.txt", "p.parquet", "B/*"]
    found = list(open_source(names))
    samples = [s for s in found if isinstance(s, Sample)]
    assert [s.id for s in samples] == [
        "A/1.jpg",
        "A/s/2.jpg",
        "B/1.jpg",
        "x.jpg",
        "t.tar::m.jpg",
        "p.parquet::0",
        "p.parquet::1",
    ]
    assert all(s.read() == s.id.encode() for s in samples[:4])
    assert [(f.id, f.kind) for f in found if isinstance(f, Failure)] == [
        ("A/1.jpg", "duplicate_id"),
        ("A/s/2.jpg", "duplicate_id"),
        ("B/1.jpg", "duplicate_id"),
    ]


def test_inputs_come_in_the_order_given(inputs: Path):
    names = ["x.jpg", "B", "A/1.jpg", "A/s/2.jpg", "t.tar"]
    assert [s.id for s in open_source(names)] == ["x.jpg", "B/1.jpg", "A/1.jpg", "A/s/2.jpg", "t.tar::m.jpg"]


def test_the_same_tar_twice_gives_each_member_once(inputs: Path):
    assert [type(e) for e in open_source(["t.tar", "t.tar"])] == [Sample, Failure]


def test_a_tar_that_holds_a_name_twice_gives_one_row_and_one_failure(inputs: Path):
    with tarfile.open("t.tar", "a") as tar:
        tar.add("x.jpg", "m.jpg")
    assert [(type(e), e.id) for e in open_source("t.tar")] == [(Sample, "t.tar::m.jpg"), (Failure, "t.tar::m.jpg")]


def test_a_list_that_names_a_file_twice_gives_one_row_and_one_failure(inputs: Path):
    Path("l.txt").write_text("x.jpg\nx.jpg\n")
    assert [type(e) for e in open_source("l.txt")] == [Sample, Failure]
    Path("l.jsonl").write_text("".join(json.dumps({"path": "x.jpg", "id": n}) + "\n" for n in range(2)))
    assert [s.id for s in open_source("l.jsonl")] == ["0", "1"]


def test_content_tells_what_a_name_does_not(inputs: Path):
    for name, new in (("t.tar", "tar"), ("p.parquet", "table")):
        Path(name).rename(new)
    Path("picture").write_bytes(JPEG)
    assert [s.id for s in open_source("tar")] == ["tar::m.jpg"]
    assert [s.id for s in open_source("table")] == ["table::0", "table::1"]
    assert [s.id for s in open_source("picture")] == ["picture"]
    Path("thing.dat").write_bytes(b"?")
    with pytest.raises(UsageError, match="say what it is with --kind"):
        open_source("thing.dat")
    Path("thing.dat").write_text("x.jpg\n")
    assert [s.id for s in open_source("thing.dat", kind=SourceKind.LIST)] == ["x.jpg"]
    assert [s.id for s in open_source("thing.dat", kind=SourceKind.IMAGE)] == ["thing.dat"]


def test_a_missing_input_says_what_where_and_what_to_do(inputs: Path):
    for names in ("gone", ["A", "gone.tar"], ["gone/x.jpg"]):
        with pytest.raises(InputNotFoundError) as caught:
            open_source(names)
        assert "No INPUT gone" in str(caught.value)
        assert str(inputs) in str(caught.value)


def test_input_of_a_wrong_kind_is_a_usage_error(inputs: Path):
    with pytest.raises(UsageError, match=r"Give a pattern: 'A/\*.tar'"):
        open_source("A", kind=SourceKind.TAR)
    with pytest.raises(UsageError, match="of kind folder, but is of kind image"):
        open_source("x.jpg", kind=SourceKind.FOLDER)
    os.mkfifo("pipe.jpg")
    with pytest.raises(UsageError, match="Save what it gives"):
        open_source("pipe.jpg")
    with pytest.raises(UsageError, match="No INPUT"):
        open_source([])


def test_options_for_columns_need_an_input_with_columns(inputs: Path):
    with pytest.raises(UsageError, match="no INPUT is a list or a Parquet file"):
        open_source("A", id_column="id")
    with pytest.raises(UsageError, match="no column 'nr'"):
        open_source("p.parquet", id_column="nr")
    pq.write_table(pa.table({"nr": ["k"], "a": [JPEG], "b": [JPEG]}), "q.parquet")
    assert [s.id for s in open_source("q.parquet", id_column="nr", image_column="b")] == ["k"]
    assert [s.id for s in open_source("q.parq*", id_column="nr", image_column="b")] == ["k"]


def test_a_root_is_where_listed_paths_start(inputs: Path):
    Path("l.txt").write_text("1.jpg\n")
    (sample,) = open_source("l.txt", root="B")
    assert (sample.id, sample.read()) == ("1.jpg", b"B/1.jpg")


def test_relative_paths_of_two_lists_stay_apart(inputs: Path):
    Path("B/l.txt").write_text("1.jpg\n/abs.jpg\n")
    ids = [e.id for e in open_source(["A/l.txt", "B/l.txt"]) if isinstance(e, Sample)]
    assert ids == ["A/1.jpg", "A/s/2.jpg", "B/1.jpg", "/abs.jpg"]


def test_shard_and_limit_go_together(inputs: Path):
    for number in range(30):
        (inputs / "A" / f"n{number}.jpg").touch()
    every = [s.id for s in open_source("A")]
    shards = [[s.id for s in open_source("A", shard=Shard(index, 3))] for index in range(3)]
    assert sorted(i for shard in shards for i in shard) == sorted(every)
    assert [s.id for s in open_source("A", shard=Shard(1, 3), limit=4)] == shards[1][:4]


def test_a_folder_of_other_files_says_what_was_seen(inputs: Path):
    source = open_source("A/s")
    (inputs / "A" / "s" / "2.jpg").rename(inputs / "A" / "s" / "2.txt")
    assert list(source) == []
    assert source.ignored == {"not an image (.txt)": 1}
    assert source.describe() == "folder A/s"


def test_many_named_images_share_one_source(inputs: Path):
    source = open_source(["x.jpg", "A/1.jpg", "B/1.jpg"])
    assert source.describe() == "3 images from x.jpg on"
    assert [s.read() for s in source] == [b"x.jpg", b"A/1.jpg", b"B/1.jpg"]


def test_a_url_is_one_image_and_never_a_shard():
    assert [s.id for s in open_source("https://host/a.jpg?size=1")] == ["https://host/a.jpg?size=1"]
    for name in ("http://host/a.tar", "s3://bucket/folder/", "gs://b/x.parquet", "http://host/list.csv?x"):
        with pytest.raises(UsageError, match="read as one image"):
            open_source(name)


def test_opening_a_folder_loads_no_heavy_package(inputs: Path):
    code = (
        "import sys; from vdali.engine.sources.open import open_source; list(open_source(['A', 't.tar']));"
        "print(*(name for name in sys.modules if name in ('pyarrow', 'fsspec', 'ssl', 'torch', 'onnxruntime')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_the_shared_awkward_files_are_all_listed(shared_data: Path):
    ids = {s.id for s in open_source(shared_data / "awkward")}
    names = set(os.listdir(shared_data / "awkward")) - {"manifest.csv"}
    assert ids == names
