"""The memory of what is done: right, small and fast."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vdali.engine.batch import DUPLICATE_ID
from vdali.engine.sinks.done import DIGEST_BYTES, DoneIndex, EntryKeys


def keys_of(ids) -> list[bytes]:
    return [EntryKeys().key_of(entry) for entry in ids]


@given(st.sets(st.text()), st.sets(st.text()))
def test_an_index_holds_exactly_its_ids(inside, outside):
    index = DoneIndex(keys_of(inside), len(inside))
    assert len(index) == len(inside)
    assert all(key in index for key in keys_of(inside))
    assert not any(key in index for key in keys_of(outside - inside))


@pytest.mark.parametrize(
    "key", [bytes(DIGEST_BYTES), b"\0" * 15 + b"\1", b"\1" + b"\0" * 15, b"\xff" * 15 + b"\0", b"\xff" * DIGEST_BYTES]
)
def test_keys_that_end_in_zero_bytes_are_told_apart(key):
    random = np.random.default_rng(0)
    others = [random.bytes(DIGEST_BYTES) for _ in range(50)]
    assert key not in DoneIndex(others, len(others))
    assert key in DoneIndex([*others, key], len(others) + 1)


def test_duplicates_of_an_id_have_keys_of_their_own():
    keys = EntryKeys()
    entries = [("a", None), ("a", DUPLICATE_ID), ("a", DUPLICATE_ID), ("b", DUPLICATE_ID), ("a", "corrupt")]
    found = [keys.key_of(*entry) for entry in entries]
    assert len(set(found)) == 4
    assert found[0] == found[4]
    again = EntryKeys()
    assert [again.key_of(*entry) for entry in entries] == found


def test_a_wrong_count_is_noticed():
    with pytest.raises(ValueError, match="3 keys were announced, 2 came"):
        DoneIndex(keys_of("ab"), 3)


def test_a_look_up_takes_microseconds():
    index = DoneIndex((i.to_bytes(8, "big") * 2 for i in range(0, 400_000, 2)), 200_000)
    keys = [i.to_bytes(8, "big") * 2 for i in range(20_000)]
    start = time.process_time()
    found = sum(key in index for key in keys)
    took = time.process_time() - start
    assert found == 10_000
    assert took / len(keys) < 20e-6


def test_a_million_ids_read_from_parts_stay_under_100_megabytes(tmp_path):
    code = f"""
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from vdali.engine.batch import Sample
from vdali.engine.sinks.done import DoneIndex, EntryKeys
def rss(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0]) * 1024
folder = Path({str(tmp_path)!r})
for part in range(16):
    ids = [f"train/n{{part:08d}}/n{{part:08d}}_{{i}}.JPEG" for i in range(62_500)]
    pq.write_table(pa.table({{"id": ids}}), folder / f"part-{{part:05d}}.parquet", write_page_checksum=True)
parts = sorted(folder.glob("part-*"))
DoneIndex.from_parts(parts[:1], [])
pa.default_memory_pool().release_unused()
import gc; del ids; gc.collect()
before = rss("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
index = DoneIndex.from_parts(parts, [])
print(len(index), rss("VmHWM") - before, EntryKeys().key_of("train/n00000015/n00000015_62499.JPEG") in index)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    count, grown, found = done.stdout.split()
    assert (count, found) == ("1000000", "True")
    assert 16_000_000 <= int(grown) < 100_000_000
