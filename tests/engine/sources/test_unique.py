from __future__ import annotations

from pathlib import Path

import pytest
from vdali.engine.batch import Failure, Sample
from vdali.engine.errors import UsageError
from vdali.engine.sources.chain import ChainSource
from vdali.engine.sources.folder import FolderSource
from vdali.engine.sources.limit import LimitSource
from vdali.engine.sources.memory import MemorySource
from vdali.engine.sources.unique import UniqueSource


def test_the_second_entry_of_an_id_becomes_a_failure():
    found = list(UniqueSource(MemorySource([("a", b"1"), ("b", b"2"), ("a", b"3")])))
    assert [(type(e), e.id) for e in found] == [(Sample, "a"), (Sample, "b"), (Failure, "a")]
    assert found[0].read() == b"1"
    assert (found[2].stage, found[2].kind, found[2].retryable) == ("source", "duplicate_id", False)


def test_a_failure_that_repeats_an_id_keeps_its_own_reason(tmp_path: Path):
    (tmp_path / "x.jpg").symlink_to("gone")
    found = list(UniqueSource(ChainSource([FolderSource(tmp_path), FolderSource(tmp_path)])))
    assert [f.kind for f in found] == ["dead_link", "duplicate_id"]
    assert "dead_link" in found[1].message


def test_each_pass_starts_with_no_memory_of_ids():
    source = UniqueSource(MemorySource([("a", b"1")]))
    assert [type(e) for e in (*source, *source)] == [Sample, Sample]


def test_sources_can_share_their_memory_of_ids():
    seen: set[int] = set()
    sources = [UniqueSource(MemorySource([("a", b"")]), seen=seen) for _ in range(2)]
    assert [type(e) for source in sources for e in source] == [Sample, Failure]


def test_a_limit_lists_no_further_than_it_must():
    asked = []

    def samples():
        for number in range(1000):
            asked.append(number)
            yield str(number), b""

    assert [s.id for s in LimitSource(MemorySource(samples()), 3)] == ["0", "1", "2"]
    assert len(asked) == 3


def test_a_limit_counts_failures_too(tmp_path: Path):
    (tmp_path / "a.jpg").symlink_to("gone")
    (tmp_path / "b.jpg").touch()
    source = LimitSource(FolderSource(tmp_path), 1)
    assert [e.id for e in source] == ["a.jpg"]
    assert source.describe() == f"folder {tmp_path}, first 1"


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(UsageError, match="Use 1 or more"):
        LimitSource(MemorySource([]), 0)


def test_a_chain_sums_what_its_parts_ignored(tmp_path: Path):
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text("x")
        (tmp_path / name / "2.jpg").touch()
    source = ChainSource([FolderSource(tmp_path / "A"), FolderSource(tmp_path / "B")])
    found = iter(source)
    next(found)
    assert source.ignored.total() == 1
    next(found)
    assert source.ignored == {"not an image (.txt)": 2}
    assert list(found) == []
    assert source.ignored == {"not an image (.txt)": 2}
    list(source)
    assert source.ignored == {"not an image (.txt)": 2}


def test_a_chain_of_many_describes_itself_in_one_line():
    source = ChainSource([MemorySource([]) for _ in range(9)])
    assert source.describe() == "samples in memory (list), " * 2 + "samples in memory (list) and 6 more"
