from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vdali.engine.batch import Failure, Sample
from vdali.engine.errors import UsageError
from vdali.engine.sources.parquet import IMAGE_BATCH_ROWS, ParquetSource

JPEG = b"\xff\xd8\xff\xe0"
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _picture(number: int) -> bytes:
    return JPEG + b"%d" % number


def _source(tmp_path: Path, columns: dict[str, object] | pa.Table, *, row_group_size: int | None = None, **options):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, tmp_path / "s.parquet", row_group_size=row_group_size)
    return ParquetSource(tmp_path / "s.parquet", name=b"s.parquet", **options)


def _split(source: ParquetSource) -> tuple[dict[str, bytes], list[Failure]]:
    found = list(source)
    samples = {s.id: s.read() for s in found if isinstance(s, Sample)}
    failures = [f for f in found if isinstance(f, Failure)]
    assert len(samples) + len(failures) == len(found)
    return samples, failures


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), STRUCT])
def test_images_are_read_from_each_kind_of_column(tmp_path: Path, kind: pa.DataType):
    values = [_picture(n) for n in range(100)]
    column = pa.array([{"bytes": v, "path": None} for v in values] if pa.types.is_struct(kind) else values, kind)
    source = _source(tmp_path, {"label": list(range(100)), "image": column}, row_group_size=IMAGE_BATCH_ROWS + 7)
    assert _split(source) == ({f"s.parquet::{n}": _picture(n) for n in range(100)}, [])


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["a", None, "", "ä\\x"], ["a", "s.parquet::1", "s.parquet::2", "ä\\x"]),
        ([7, 8, None, 9], ["7", "8", "s.parquet::2", "9"]),
        ([b"k", b"\xff", None, b"\xc3\xa9"], ["k", "\\xff", "s.parquet::2", "é"]),
        (pa.array(["a", "b", "a", "c"]).dictionary_encode(), ["a", "b", "c"]),
    ],
)
def test_ids_come_from_the_id_column(tmp_path: Path, ids: object, expected: list[str]):
    for name in ("id", "key"):
        contents, _ = _split_ids(
            _source(tmp_path, {name: ids, "jpg": [_picture(n) for n in range(4)]}, image_column="jpg")
        )
        assert list(dict.fromkeys(contents)) == expected


def _split_ids(source: ParquetSource) -> tuple[list[str], list[Failure]]:
    found = list(source)
    return [s.id for s in found if isinstance(s, Sample)], [f for f in found if isinstance(f, Failure)]


def test_an_id_column_can_be_named(tmp_path: Path):
    source = _source(tmp_path, {"id": [1], "nr": ["n1"], "x": [JPEG]}, id_column="nr")
    assert _split(source) == ({"n1": JPEG}, [])
    assert source.columns().names() == ["x", "nr"]


def test_text_that_lies_about_its_encoding_still_gives_an_id(tmp_path: Path):
    ids = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    assert _split(_source(tmp_path, {"id": ids, "x": [JPEG]})) == ({"caf\\xe9": JPEG}, [])


def test_a_null_image_becomes_a_failure(tmp_path: Path):
    for column in ([JPEG, None, JPEG], pa.array([{"bytes": JPEG}, None, {"bytes": JPEG}], STRUCT)):
        contents, failures = _split(_source(tmp_path, {"image": column}))
        assert list(contents) == ["s.parquet::0", "s.parquet::2"]
        assert [(f.id, f.stage, f.kind, f.retryable) for f in failures] == [
            ("s.parquet::1", "source", "null_image", False)
        ]
    _, failures = _split(_source(tmp_path, {"image": pa.array([{"bytes": None, "path": None}], STRUCT)}))
    assert [f.kind for f in failures] == ["null_image"]


def test_a_struct_without_bytes_leads_to_its_file(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"file")
    contents, failures = _split(_source(tmp_path, {"image": pa.array([{"bytes": None, "path": "a.jpg"}], STRUCT)}))
    assert (contents, failures) == ({"s.parquet::0": b"file"}, [])


def test_a_column_of_paths_is_a_list(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"file")
    contents, failures = _split(_source(tmp_path, {"path": ["a.jpg", None, ""], "id": ["x", "y", "z"]}))
    assert contents == {"x": b"file"}
    assert [(f.id, f.kind) for f in failures] == [("s.parquet::1", "malformed_row"), ("s.parquet::2", "malformed_row")]
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "a.jpg").write_bytes(b"root")
    assert _split(_source(tmp_path, {"where": ["a.jpg"]}, path_column="where", root=tmp_path / "r"))[0] == {
        "a.jpg": b"root"
    }


def test_many_paths_keep_their_rows(tmp_path: Path):
    ids, failures = _split_ids(_source(tmp_path, {"path": [f"{n}.jpg" for n in range(10_000)]}, row_group_size=3000))
    assert ids == [f"{n}.jpg" for n in range(10_000)]
    assert failures == []


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"a": [b"x"], "b": [b"y"]}, {}, "'a (binary)', 'b (binary)'"),
        ({"text": ["x"], "n": [1]}, {}, "'text (string)', 'n (int64)'"),
        ({"image": [b"x"]}, {"image_column": "img"}, "no column 'img'. Its columns: 'image'"),
        ({"image": [b"x"], "n": [1]}, {"image_column": "n"}, "holds int64, not bytes"),
        ({"image": [b"x"]}, {"id_column": "nr"}, "no column 'nr'"),
        ({"image": [b"x"]}, {"path_column": "p"}, "no column 'p'"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    tmp_path: Path, columns: dict[str, object], options: dict[str, str], words: str
):
    source = _source(tmp_path, columns, **options)
    with pytest.raises(UsageError) as caught:
        source.columns()
    assert words in str(caught.value)
    assert [(f.id, f.kind) for f in source] == [("s.parquet", "no_image_column")]


def test_the_usual_name_wins_among_columns_of_bytes(tmp_path: Path):
    assert _split(_source(tmp_path, {"hash": [b"h"], "image": [JPEG]}))[0] == {"s.parquet::0": JPEG}


@pytest.mark.parametrize("cut", [0, 3, 100, -1])
def test_a_cut_file_is_one_failure(tmp_path: Path, cut: int):
    source = _source(tmp_path, {"image": [JPEG * 100] * 50})
    data = (tmp_path / "s.parquet").read_bytes()
    (tmp_path / "s.parquet").write_bytes(data[:cut])
    assert source.columns() is None
    assert [(f.id, f.stage, f.kind, f.retryable) for f in source] == [
        ("s.parquet", "source", "shard_unreadable", False)
    ]


def test_a_missing_file_is_one_failure(tmp_path: Path):
    (failure,) = ParquetSource(tmp_path / "gone.parquet", name=b"gone.parquet")
    assert (failure.id, failure.kind, failure.retryable) == ("gone.parquet", "shard_unreadable", False)


def test_a_damaged_row_group_does_not_take_the_others_with_it(tmp_path: Path):
    table = pa.table({"image": [_picture(n) * 50 for n in range(30)]})
    how = {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(table, tmp_path / "s.parquet", row_group_size=10, **how)
    place = pq.ParquetFile(tmp_path / "s.parquet").metadata.row_group(1).column(0).data_page_offset
    data = bytearray((tmp_path / "s.parquet").read_bytes())
    data[place + 1500] ^= 0xFF
    (tmp_path / "s.parquet").write_bytes(data)
    contents, failures = _split(ParquetSource(tmp_path / "s.parquet", name=b"s.parquet"))
    assert list(contents) == [f"s.parquet::{n}" for n in (*range(10), *range(20, 30))]
    assert [(f.id, f.kind, f.retryable) for f in failures] == [("s.parquet::rows 10-19", "shard_damaged", True)]


def test_a_file_name_that_is_no_utf_8_is_opened(tmp_path: Path):
    path = str(tmp_path).encode() + b"/caf\xe9.parquet"
    pq.write_table(pa.table({"image": [JPEG]}), tmp_path / "s.parquet")
    (tmp_path / "s.parquet").rename(path.decode("utf-8", "surrogateescape"))
    assert _split(ParquetSource(path, name=b"caf\xe9.parquet")) == ({"caf\\xe9.parquet::0": JPEG}, [])


def test_images_are_streamed_and_not_held(tmp_path: Path):
    table = pa.table({"image": [JPEG + bytes(30_000)] * 3000})
    pq.write_table(table, tmp_path / "s.parquet", use_dictionary=False, compression="none")
    del table
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in ParquetSource(tmp_path / "s.parquet")]
    assert len(held) == 3000
    assert max(held) < 60e6  # the row group has 90 MB, its largest page (1,024 values) 31 MB
