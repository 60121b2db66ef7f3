from __future__ import annotations

import errno
import json
import tracemalloc
from pathlib import Path

import pytest
from vdali.engine.batch import Failure, Sample
from vdali.engine.errors import InputNotFoundError, ReadError, UsageError
from vdali.engine.sources.ids import bytes_from_id
from vdali.engine.sources.list import ListSource
from vdali.engine.sources.list_rows import MAX_LINE_BYTES


def _list(tmp_path: Path, name: str, content: bytes | str, **options: str | Path) -> ListSource:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    source = ListSource(path, **options)
    source.check()
    return source


def _split(source: ListSource) -> tuple[list[str], list[Failure]]:
    found = list(source)
    return [s.id for s in found if isinstance(s, Sample)], [f for f in found if isinstance(f, Failure)]


def test_a_text_list_gives_each_line_in_order(tmp_path: Path):
    source = _list(tmp_path, "l.txt", b"\xef\xbb\xbfb.jpg\r\n\r\n# note\n  \na b.jpg\n/abs/c.jpg")
    assert _split(source) == (["b.jpg", "a b.jpg", "/abs/c.jpg"], [])
    assert source.ignored == {"blank line": 2, "comment": 1}


def test_relative_paths_start_at_the_folder_of_the_list_or_at_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("lists", "data"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jpg").write_bytes(folder.encode())
    (tmp_path / "lists" / "l.txt").write_text(f"x.jpg\n{tmp_path}/data/x.jpg\n")
    monkeypatch.chdir(tmp_path)
    beside = list(ListSource("lists/l.txt"))
    rooted = list(ListSource("lists/l.txt", root="data"))
    monkeypatch.chdir("/")
    assert [s.read() for s in beside] == [b"lists", b"data"]
    assert [s.read() for s in rooted] == [b"data", b"data"]


def test_paths_that_are_no_utf_8_lead_back_to_their_bytes(tmp_path: Path):
    with open(str(tmp_path).encode() + b"/caf\xe9.jpg", "wb") as file:
        file.write(b"found")
    for name, text in (
        ("l.txt", b"caf\xe9.jpg\n"),
        ("l.csv", b"path\ncaf\xe9.jpg\n"),
        ("l.tsv", b"path\ncaf\xe9.jpg\n"),
    ):
        (sample,) = _list(tmp_path, name, text)
        assert bytes_from_id(sample.id) == b"caf\xe9.jpg"
        assert sample.read() == b"found"
    (sample,) = _list(tmp_path, "l.jsonl", json.dumps({"path": "caf\udce9.jpg"}))
    assert sample.read() == b"found"


def test_a_csv_list_takes_the_id_column(tmp_path: Path):
    content = 'label,path,id\ncat,"a, b.jpg",7\ndog,"line\nbreak.jpg",x y\n\nowl,c.jpg,\n'
    source = _list(tmp_path, "l.csv", content)
    assert _split(source) == (["7", "x y", "c.jpg"], [])
    assert source.ignored == {"blank line": 1}


def test_columns_can_be_named(tmp_path: Path):
    content = "where\tkey\tid\na.jpg\tk1\t1\n"
    assert _split(_list(tmp_path, "l.tsv", content, path_column="where", id_column="key")) == (["k1"], [])
    line = json.dumps({"where": "a.jpg", "n": 5})
    assert _split(_list(tmp_path, "l.ndjson", line, path_column="where", id_column="n")) == (["5"], [])


def test_usual_names_of_columns_are_found(tmp_path: Path):
    assert _split(_list(tmp_path, "l.csv", "file_name,label\na.jpg,1\n")) == (["a.jpg"], [])
    assert _split(_list(tmp_path, "m.csv", "url,key\nhttp://h/a.jpg,k\n")) == (["k"], [])


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("l.csv", "image;label\na.jpg;1\n", {}),
        ("l.csv", "image;label\na.jpg;1\n", {"path_column": "path"}),
        ("l.csv", "path,image;label\na.jpg,1\n", {"id_column": "nr"}),
        ("l.csv", "", {}),
        ("l.txt", "a.jpg", {"id_column": "nr"}),
    ],
)
def test_a_missing_column_is_a_usage_error_that_names_what_is_there(tmp_path: Path, name: str, content: str, options):
    with pytest.raises(UsageError) as caught:
        _list(tmp_path, name, content, **options)
    expected = "image;label" if content.startswith(("image", "path")) else "no columns"
    assert expected in str(caught.value)


def test_malformed_lines_are_failures_that_name_their_line(tmp_path: Path):
    lines = [
        '{"path": "a.jpg", "id": 1}',
        "{broken",
        '["a.jpg"]',
        '{"file": "a.jpg"}',
        '{"path": null}',
        '{"path": 5}',
        '{"path": "b.jpg", "id": {"x": 1}}',
        '{"path": "\\ud800.jpg"}',
        '{"path": "nul\\u0000.jpg"}',
        "[" * 100_000,
        "",
        '{"path": "z.jpg"}',
    ]
    source = _list(tmp_path, "l.jsonl", "\n".join(lines).encode() + b"\n\xff\xfe\n")
    ids, failures = _split(source)
    assert ids == ["1", "z.jpg"]
    assert [f.id for f in failures] == [f"{tmp_path}/l.jsonl::line {n}" for n in (*range(2, 11), 13)]
    assert {(f.stage, f.kind, f.retryable) for f in failures} == {("source", "malformed_line", False)}
    assert all(f"line {n}" in f.message for n, f in zip((*range(2, 11), 13), failures, strict=True))
    for failure in failures:
        failure.message.encode()


def test_malformed_csv_rows_are_failures(tmp_path: Path):
    content = 'id,path\n1,a.jpg\n2\n3,\n4,"b.jpg"x\n5,c.jpg\n6,"open\nd.jpg\n'
    ids, failures = _split(_list(tmp_path, "l.csv", content))
    assert ids == ["1", "5"]
    assert [f.id.rpartition("::")[2] for f in failures] == ["line 3", "line 4", "line 5", "line 8"]
    assert "from line 7 on" in failures[3].message


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path):
    with (tmp_path / "l.txt").open("wb") as file:
        file.write(b"a.jpg\n")
        file.truncate(30 * MAX_LINE_BYTES)
        file.seek(30 * MAX_LINE_BYTES)
        file.write(b"\nb.jpg\n")
    tracemalloc.start()
    try:
        ids, failures = _split(ListSource(tmp_path / "l.txt"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ids == ["a.jpg", "b.jpg"]
    assert [f.id.rpartition("::")[2] for f in failures] == ["line 2"]
    assert peak < 5 * MAX_LINE_BYTES


def test_a_long_list_is_streamed(tmp_path: Path):
    with (tmp_path / "l.csv").open("w") as file:
        file.write("path\n")
        file.writelines(f"folder/{n}.jpg\n" for n in range(30_000))
    tracemalloc.start()
    try:
        count = sum(1 for _ in ListSource(tmp_path / "l.csv"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 30_000
    assert peak < 1_000_000


def test_a_list_that_cannot_be_read_says_why(tmp_path: Path):
    with pytest.raises(InputNotFoundError, match="No such file"):
        ListSource(tmp_path / "gone.txt").check()
    (tmp_path / "u.txt").write_bytes("a.jpg\n".encode("utf-16"))
    with pytest.raises(UsageError, match="UTF-16"):
        ListSource(tmp_path / "u.txt").check()


def test_a_list_that_goes_away_becomes_a_failure(tmp_path: Path):
    source = _list(tmp_path, "l.txt", "a.jpg\n")
    (tmp_path / "l.txt").unlink()
    ((failure),) = source
    assert (failure.id, failure.kind, failure.retryable) == (f"{tmp_path}/l.txt", "list_unreadable", False)


def test_a_listed_file_that_is_missing_fails_in_reading(tmp_path: Path):
    (sample,) = _list(tmp_path, "l.txt", "gone.jpg\n")
    with pytest.raises(ReadError) as caught:
        sample.read()
    assert (caught.value.kind, caught.value.retryable) == ("not_found", False)
    assert str(caught.value).startswith(f"{tmp_path}/gone.jpg: ")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOENT


def test_a_prefix_starts_relative_paths_alone(tmp_path: Path):
    (tmp_path / "l.txt").write_text("a.jpg\n/b.jpg\nhttp://h/c.jpg\n")
    ids = [s.id for s in ListSource(tmp_path / "l.txt", prefix=b"lists/")]
    assert ids == ["lists/a.jpg", "/b.jpg", "http://h/c.jpg"]


def test_a_second_pass_starts_anew(tmp_path: Path):
    source = _list(tmp_path, "l.txt", "a.jpg\n\n")
    assert [s.id for s in source] == [s.id for s in source] == ["a.jpg"]
    assert source.ignored.total() == 1
