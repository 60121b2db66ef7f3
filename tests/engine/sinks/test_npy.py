"""NumPy part files: arrays that map into memory, and ids that commit them."""

from __future__ import annotations

import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from vdali.engine.batch import Failure, Rows, Sample
from vdali.engine.errors import OutputError, UsageError
from vdali.engine.preprocess import Preprocess
from vdali.engine.sinks.npy import NpySink
from vdali.engine.sinks.parquet import PartOptions
from vdali.engine.spec import ModelSpec, Task

PREPROCESS = Preprocess(size=(8, 8), resize=(8, 8))
EMBED = ModelSpec(name="toy", task=Task.EMBED, preprocess=PREPROCESS)
CLASSIFY = ModelSpec(name="toy", task=Task.CLASSIFY, preprocess=PREPROCESS, classes=("cat", "dog"))


def open_sink(out, spec=EMBED, **options) -> NpySink:
    return NpySink(out, spec=spec, fingerprint="f" * 16, options=PartOptions(**options))


def embed_rows(start: int, count: int, width: int = 4) -> Rows:
    vectors = np.arange(start * width, (start + count) * width, dtype=np.float32).reshape(count, width)
    return Rows([f"{start + i}" for i in range(count)], {"embedding": vectors, "salvaged": np.zeros(count, bool)})


def sample(sample_id: str) -> Sample:
    return Sample(sample_id, bytes)


def test_embeddings_map_into_memory_and_ids_stand_beside_them(tmp_path):
    sink = open_sink(tmp_path, rows=6)
    for start in range(0, 12, 3):
        sink.write(embed_rows(start, 3), [])
    sink.write(embed_rows(12, 1), [Failure("bad", "decode", "corrupt", "lost")])
    sink.commit()
    assert sorted(os.listdir(tmp_path / "rows")) == [
        f"part-{i:05d}.{suffix}" for i in range(3) for suffix in ("embedding.npy", "ids.parquet")
    ]
    for i in range(3):
        vectors = np.load(tmp_path / f"rows/part-{i:05d}.embedding.npy", mmap_mode="r")
        ids = pq.read_table(tmp_path / f"rows/part-{i:05d}.ids.parquet")["id"].to_pylist()
        assert isinstance(vectors, np.memmap)
        assert vectors.dtype == np.float32
        assert vectors.tolist() == [[4 * int(name) + k for k in range(4)] for name in ids]
    assert pq.read_table(tmp_path / "failures")["id"].to_pylist() == ["bad"]


def test_labels_and_top_lists_are_arrays_and_names_stand_with_the_ids(tmp_path):
    sink = open_sink(tmp_path, CLASSIFY)
    columns = {
        "label": np.array([1, 7], np.int32),
        "name": ["dog", None],
        "score": np.array([0.75, 0.5], np.float32),
        "top_labels": np.array([[1, 0], [7, 1]], np.int32),
        "top_scores": np.array([[0.75, 0.25], [0.5, 0.25]], np.float32),
        "salvaged": np.array([False, True]),
    }
    sink.write(Rows(["a", "b"], columns), [])
    sink.commit()
    for name in ("label", "score", "top_labels", "top_scores"):
        array = np.load(tmp_path / f"rows/part-00000.{name}.npy")
        assert array.dtype == columns[name].dtype
        assert array.tolist() == columns[name].tolist()
    assert pq.read_table(tmp_path / "rows/part-00000.ids.parquet").to_pylist() == [
        {"id": "a", "name": "dog", "salvaged": False},
        {"id": "b", "name": None, "salvaged": True},
    ]


def test_arrays_without_ids_are_not_committed_and_go(tmp_path):
    sink = open_sink(tmp_path, rows=2)
    sink.write(embed_rows(0, 2), [])
    sink.write(embed_rows(2, 2), [])
    (tmp_path / "rows/part-00001.ids.parquet").unlink()
    again = open_sink(tmp_path)
    assert [again.is_done(sample(f"{i}")) for i in range(4)] == [True, True, False, False]
    assert sorted(os.listdir(tmp_path / "rows")) == ["part-00000.embedding.npy", "part-00000.ids.parquet"]
    again.write(embed_rows(2, 2), [])
    again.commit()
    assert np.load(tmp_path / "rows/part-00001.embedding.npy")[0, 0] == 8


@pytest.mark.parametrize("damage", ["missing", "short", "other rows"])
def test_committed_ids_without_their_array_are_named(tmp_path, damage):
    sink = open_sink(tmp_path)
    sink.write(embed_rows(0, 3), [])
    sink.commit()
    array = tmp_path / "rows/part-00000.embedding.npy"
    if damage == "missing":
        array.unlink()
    elif damage == "short":
        array.write_bytes(array.read_bytes()[:-4])
    else:
        np.save(array, np.zeros((2, 4), np.float32))
    with pytest.raises(OutputError, match=r"part-00000.embedding.npy is not readable.*delete .*part-00000\.\*"):
        open_sink(tmp_path)


def test_a_run_without_rows_leaves_an_empty_list_of_ids(tmp_path):
    open_sink(tmp_path).commit()
    assert pq.read_table(tmp_path / "rows/part-00000.ids.parquet").num_rows == 0
    assert np.load(tmp_path / "rows/part-00000.embedding.npy").size == 0
    again = open_sink(tmp_path)
    again.write(embed_rows(0, 2), [])
    again.commit()
    assert np.load(tmp_path / "rows/part-00000.embedding.npy").shape == (2, 4)


def test_vectors_of_another_width_are_refused(tmp_path):
    sink = open_sink(tmp_path)
    sink.write(embed_rows(0, 2), [])
    sink.commit()
    with pytest.raises(OutputError, match=r"vdali.width is '4' there and '5' now"):
        open_sink(tmp_path).write(embed_rows(2, 2, width=5), [])


def test_masks_are_refused_and_the_message_names_the_format_that_takes_them(tmp_path):
    segment = ModelSpec(name="toy", task=Task.SEGMENT, preprocess=PREPROCESS)
    with pytest.raises(UsageError, match="--format parquet"):
        open_sink(tmp_path, segment)
    assert not os.listdir(tmp_path)
