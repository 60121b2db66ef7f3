from __future__ import annotations

import json
from pathlib import Path

import pytest
from vdali.benchmarks.bench_file import BENCH_VERSION, check_writable, damage_told, read_bench, write_bench
from vdali.engine.errors import OutputError, UsageError


def test_a_bench_file_comes_back_with_version_and_environment(tmp_path: Path):
    path = tmp_path / "new" / "bench.json"
    write_bench(path, {"comparisons": [1]})
    found = read_bench(path)
    assert found["bench_version"] == BENCH_VERSION
    assert found["comparisons"] == [1]
    assert found["environment"]["python"]


def test_a_file_of_another_version_is_refused_plainly(tmp_path: Path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"bench_version": 99}))
    with pytest.raises(UsageError, match=f"is of bench version 99, this vdali reads version {BENCH_VERSION}"):
        read_bench(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[1]", "is no bench file"), ('{"rows": 3}', "is no bench file"), ("3", "is no bench file")],
)
def test_what_is_no_bench_file_is_refused_plainly(tmp_path: Path, text: str, message: str):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_bench(path)


def test_a_missing_file_is_told(tmp_path: Path):
    with pytest.raises(UsageError, match="No such file"):
        read_bench(tmp_path / "none.json")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Cannot write"):
        write_bench(tmp_path / "file" / "bench.json", {})


def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "bench.json", tmp_path):
        with pytest.raises(OutputError, match="Cannot write"):
            check_writable(path)
    check_writable(tmp_path / "new" / "bench.json")
    assert list((tmp_path / "new").iterdir()) == []


def test_what_goes_wrong_with_a_damaged_file_is_told_with_its_name():
    with pytest.raises(UsageError, match=r"^b\.json is damaged: .*\(KeyError: 'rows'\)"), damage_told(Path("b.json")):
        {}["rows"]
