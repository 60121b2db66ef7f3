from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from vdali.engine.batch import Failure
from vdali.engine.errors import UsageError
from vdali.engine.sources.folder import FolderSource
from vdali.engine.sources.memory import MemorySource
from vdali.engine.sources.shard import Shard, ShardSource
from vdali.engine.sources.tar import TarSource


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 40])
def test_shards_together_hold_each_file_once(tmp_path: Path, workers: int):
    for files in range(1, 24):
        (tmp_path / f"{files}.jpg").touch()
        found = Counter(
            sample.id
            for index in range(workers)
            for sample in ShardSource(FolderSource(tmp_path), Shard(index, workers))
        )
        assert found == Counter(f"{n}.jpg" for n in range(1, files + 1))


def test_the_shard_of_an_id_does_not_depend_on_the_order_of_listing():
    ids = [f"{n}.jpg" for n in range(50)]
    there = {s.id for s in ShardSource(MemorySource([(i, b"") for i in ids]), Shard(1, 3))}
    back = {s.id for s in ShardSource(MemorySource([(i, b"") for i in reversed(ids)]), Shard(1, 3))}
    assert there == back


def test_shards_are_of_similar_size():
    sizes = [sum(Shard(index, 4).holds(f"{n}.jpg") for n in range(4000)) for index in range(4)]
    assert sum(sizes) == 4000
    assert min(sizes) > 900


def test_a_failed_shard_file_is_recorded_by_exactly_one_worker(tmp_path: Path):
    (tmp_path / "a.tar").write_bytes(b"no tar" * 999)
    found = [f for index in range(5) for f in ShardSource(TarSource(tmp_path / "a.tar"), Shard(index, 5))]
    assert [f.kind for f in found if isinstance(f, Failure)] == ["shard_unreadable"]


def test_a_shard_is_parsed():
    assert Shard.parse("0/4") == Shard(0, 4)
    assert str(Shard.parse(" 3/4 ")) == "3/4"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("4/4", "the last of 4 is 3/4"),
        ("0/0", "must be 1 or more"),
        ("-1/4", "form i/n"),
        ("1", "form i/n"),
        ("1/2/3", "form i/n"),
        ("a/b", "form i/n"),
        ("", "form i/n"),
        ("²/3", "form i/n"),
    ],
)
def test_a_shard_that_does_not_exist_is_refused(text: str, reason: str):
    with pytest.raises(UsageError, match=reason):
        Shard.parse(text)


def test_a_sharded_source_tells_its_shard_and_what_was_ignored(tmp_path: Path):
    (tmp_path / "a.txt").write_text("x")
    source = ShardSource(FolderSource(tmp_path), Shard(0, 2))
    assert list(source) == []
    assert source.ignored == {"not an image (.txt)": 1}
    assert source.describe() == f"folder {tmp_path}, shard 0/2"
