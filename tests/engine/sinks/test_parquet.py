"""Part files: what is written, when it is committed, and what a second session finds."""

from __future__ import annotations

import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vdali.engine.batch import DUPLICATE_ID, Failure, Rows, Sample
from vdali.engine.errors import OutputError, VdaliError
from vdali.engine.preprocess import Preprocess
from vdali.engine.sinks.parquet import ParquetSink, PartOptions
from vdali.engine.spec import ModelSpec, Task

PREPROCESS = Preprocess(size=(8, 8), resize=(8, 8))
EMBED = ModelSpec(name="toy", task=Task.EMBED, preprocess=PREPROCESS, normalize=True)
CLASSIFY = ModelSpec(name="toy", task=Task.CLASSIFY, preprocess=PREPROCESS, classes=("cat", "dog"))
SEGMENT = ModelSpec(name="toy", task=Task.SEGMENT, preprocess=PREPROCESS)


def open_sink(out, spec=EMBED, **options) -> ParquetSink:
    retry = options.pop("retry_failures", False)
    return ParquetSink(out, spec=spec, fingerprint="f" * 16, options=PartOptions(**options), retry_failures=retry)


def embed_rows(*ids: str, width: int = 4) -> Rows:
    vectors = np.array([[hash(i) % 97 + k for k in range(width)] for i in ids], np.float32)
    return Rows(list(ids), {"embedding": vectors, "salvaged": np.zeros(len(ids), bool)})


def sample(sample_id: str) -> Sample:
    return Sample(sample_id, bytes)


def failure(sample_id: str, kind: str = "corrupt", *, retryable: bool = False) -> Failure:
    return Failure(sample_id, "decode", kind, f"{sample_id} is lost", retryable)


def ids_in(folder) -> list[str]:
    return pq.read_table(folder)["id"].to_pylist()


def test_embeddings_come_back_as_fixed_size_float_vectors(tmp_path):
    sink = open_sink(tmp_path)
    rows = embed_rows("a", "b")
    sink.write(rows, [failure("c")])
    sink.commit()
    table = pq.read_table(tmp_path / "rows")
    assert table.schema.names == ["id", "embedding", "salvaged"]
    assert table.schema.field("embedding").type.list_size == 4
    assert table["embedding"].combine_chunks().flatten().to_numpy().reshape(2, 4).tolist() == (
        rows.columns["embedding"].tolist()
    )
    assert pq.read_table(tmp_path / "failures").to_pylist() == [
        {"id": "c", "stage": "decode", "kind": "corrupt", "message": "c is lost", "retryable": False}
    ]


def test_labels_and_masks_come_back(tmp_path):
    labels = open_sink(tmp_path / "labels", CLASSIFY)
    columns = {
        "label": np.array([1, 7], np.int32),
        "name": ["dog", None],
        "score": np.array([0.75, 0.5], np.float32),
        "top_labels": np.array([[1, 0], [7, 1]], np.int32),
        "top_scores": np.array([[0.75, 0.25], [0.5, 0.25]], np.float32),
        "salvaged": np.array([False, True]),
    }
    labels.write(Rows(["a", "b"], columns), [])
    labels.commit()
    assert pq.read_table(tmp_path / "labels/rows").to_pylist()[1] == {
        "id": "b",
        "label": 7,
        "name": None,
        "score": 0.5,
        "top_labels": [7, 1],
        "top_scores": [0.5, 0.25],
        "salvaged": True,
    }
    masks = open_sink(tmp_path / "masks", SEGMENT)
    size = {"height": np.array([3], np.int32), "width": np.array([5], np.int32), "salvaged": np.array([False])}
    masks.write(Rows(["a"], {"mask_png": [b"\x89PNG\0"], **size}), [])
    masks.commit()
    assert pq.read_table(tmp_path / "masks/rows").to_pylist() == [
        {"id": "a", "mask_png": b"\x89PNG\0", "height": 3, "width": 5, "salvaged": False}
    ]


def test_every_part_says_which_run_and_whether_vectors_are_normalised(tmp_path):
    sink = open_sink(tmp_path, rows=1)
    sink.write(embed_rows("a"), [failure("b")])
    sink.write(embed_rows("c"), [])
    parts = sorted(tmp_path.glob("*/part-*.parquet"))
    assert len(parts) == 3
    for part in parts:
        metadata = pq.read_schema(part).metadata
        assert metadata[b"vdali.normalize"] == b"true"
        assert metadata[b"vdali.fingerprint"] == b"f" * 16
        assert metadata[b"vdali.preprocess"] == PREPROCESS.fingerprint().encode()
        assert (metadata[b"vdali.model"], metadata[b"vdali.precision"]) == (b"toy", b"fp32")


def test_all_parts_share_one_schema(tmp_path):
    for session in range(2):
        sink = open_sink(tmp_path, rows=2)
        for i in range(5):
            sink.write(embed_rows(f"{session}-{i}"), [failure(f"{session}-bad-{i}")])
        sink.commit()
    for name in ("rows", "failures"):
        schemas = [pq.read_schema(part) for part in sorted((tmp_path / name).iterdir())]
        assert len(schemas) > 3
        assert all(schema.equals(schemas[0], check_metadata=True) for schema in schemas)


@pytest.mark.parametrize(
    "sample_id",
    ["line\nbreak.jpg", "tab\t.jpg", "\U0001f600/ñ.jpg", r"caf\xe9.jpg", "a\\nb", "", " ", "nul\0l", "a" * 5000],
)
def test_odd_ids_come_back_unchanged_and_are_done(tmp_path, sample_id):
    sink = open_sink(tmp_path)
    sink.write(embed_rows(sample_id), [failure(sample_id + "!")])
    sink.commit()
    assert ids_in(tmp_path / "rows") == [sample_id]
    again = open_sink(tmp_path)
    assert again.is_done(sample(sample_id))
    assert again.is_done(sample(sample_id + "!"))
    assert not again.is_done(sample(sample_id + "?"))


def test_a_message_with_bytes_that_are_not_utf8_is_kept_as_escapes(tmp_path):
    sink = open_sink(tmp_path)
    sink.write(Rows((), {}), [Failure("a", "read", "missing", "no file 'caf\udce9.jpg'")])
    sink.commit()
    assert pq.read_table(tmp_path / "failures")["message"].to_pylist() == [r"no file 'caf\udce9.jpg'"]


def test_a_part_is_committed_when_rows_and_failures_reach_its_size(tmp_path):
    sink = open_sink(tmp_path, rows=4)
    sink.write(embed_rows("a", "b", "c"), [])
    assert not list((tmp_path / "rows").iterdir())
    sink.write(Rows((), {}), [failure("d")])
    assert ids_in(tmp_path / "rows") == ["a", "b", "c"]
    assert ids_in(tmp_path / "failures") == ["d"]


def test_a_part_is_committed_when_its_first_row_has_waited_long_enough(tmp_path):
    sink = open_sink(tmp_path, seconds=0.2)
    sink.write(embed_rows("a"), [])
    assert not list((tmp_path / "rows").iterdir())
    time.sleep(0.25)
    sink.write(embed_rows("b"), [])
    assert ids_in(tmp_path / "rows") == ["a", "b"]
    sink.write(embed_rows("c"), [])
    assert len(list((tmp_path / "rows").iterdir())) == 1


def test_a_part_is_committed_when_it_takes_too_much_memory(tmp_path):
    sink = open_sink(tmp_path, bytes=1000)
    sink.write(embed_rows("a", width=200), [])
    assert not list((tmp_path / "rows").iterdir())
    sink.write(embed_rows("b", width=200), [])
    assert ids_in(tmp_path / "rows") == ["a", "b"]


def test_a_run_without_rows_leaves_empty_tables_that_later_rows_replace(tmp_path):
    sink = open_sink(tmp_path)
    sink.commit()
    rows = pq.read_table(tmp_path / "rows")
    assert (rows.num_rows, rows.schema.names) == (0, ["id", "embedding", "salvaged"])
    assert pq.read_table(tmp_path / "failures").schema.names == ["id", "stage", "kind", "message", "retryable"]
    sink.write(embed_rows("a"), [])
    sink.commit()
    assert ids_in(tmp_path / "rows") == ["a"]
    again = open_sink(tmp_path)
    again.write(embed_rows("b"), [])
    again.commit()
    assert sorted(os.listdir(tmp_path / "rows")) == ["part-00000.parquet", "part-00001.parquet"]
    assert pq.read_table(tmp_path / "rows").schema.field("embedding").type.list_size == 4


def test_an_empty_table_of_an_earlier_session_does_not_fix_the_schema(tmp_path):
    open_sink(tmp_path).commit()
    sink = open_sink(tmp_path)
    sink.write(embed_rows("a"), [])
    sink.commit()
    assert pq.read_table(tmp_path / "rows").schema.field("embedding").type.list_size == 4


def test_rows_that_were_not_committed_are_not_done(tmp_path):
    sink = open_sink(tmp_path, rows=2)
    sink.write(embed_rows("a", "b"), [])
    sink.write(embed_rows("c"), [])
    sink.close()
    sink.commit()
    again = open_sink(tmp_path)
    assert [again.is_done(sample(i)) for i in "abc"] == [True, True, False]
    assert again.done_count == 2


def test_opening_removes_half_written_files_and_nothing_else(tmp_path):
    sink = open_sink(tmp_path)
    sink.write(embed_rows("a"), [failure("b")])
    sink.commit()
    for folder in ("rows", "failures"):
        (tmp_path / folder / ".tmp-part-00001.parquet").write_bytes(b"half")
        assert len(ids_in(tmp_path / folder)) == 1
    open_sink(tmp_path)
    assert [os.listdir(tmp_path / folder) for folder in ("rows", "failures")] == [["part-00000.parquet"]] * 2


def test_a_resumed_session_tries_retryable_failures_again_and_no_other(tmp_path):
    sink = open_sink(tmp_path, rows=3)
    sink.write(embed_rows("a"), [failure("gone"), failure("slow", "timeout", retryable=True)])
    sink.write(Rows((), {}), [failure(f"slow-{i}", "timeout", retryable=True) for i in range(3)])
    again = open_sink(tmp_path)
    assert [again.is_done(sample(i)) for i in ("a", "gone", "slow", "slow-0", "slow-2")] == [True, True, *[False] * 3]
    assert ids_in(tmp_path / "failures") == ["gone"]
    again.write(embed_rows("slow"), [failure("slow-0")])
    again.commit()
    assert sorted(ids_in(tmp_path / "rows")) == ["a", "slow"]
    assert sorted(ids_in(tmp_path / "failures")) == ["gone", "slow-0"]


def test_permanent_failures_are_tried_again_when_asked(tmp_path):
    sink = open_sink(tmp_path)
    sink.write(embed_rows("a"), [failure("gone")])
    sink.commit()
    again = open_sink(tmp_path, retry_failures=True)
    assert [again.is_done(sample(i)) for i in ("a", "gone")] == [True, False]


def test_duplicates_of_an_id_are_counted_and_each_is_recorded_once(tmp_path):
    duplicate = failure("a", DUPLICATE_ID)
    entries = [sample("a"), duplicate, sample("b"), duplicate, failure("b", DUPLICATE_ID), duplicate]

    def session(limit: int) -> None:
        sink = open_sink(tmp_path)
        left = [entry for entry in entries if not sink.is_done(entry)][:limit]
        for entry in left:
            rows = embed_rows(entry.id) if isinstance(entry, Sample) else Rows((), {})
            sink.write(rows, [entry] if isinstance(entry, Failure) else [])
        sink.commit()

    for session_limit in (1, 1, 2, 10, 10):
        session(session_limit)
    assert sorted(ids_in(tmp_path / "rows")) == ["a", "b"]
    assert sorted(ids_in(tmp_path / "failures")) == ["a", "a", "a", "b"]


def test_a_duplicate_that_is_done_does_not_make_its_first_occurrence_done(tmp_path):
    sink = open_sink(tmp_path)
    sink.write(Rows((), {}), [failure("a", "timeout", retryable=True), failure("a", DUPLICATE_ID)])
    sink.commit()
    again = open_sink(tmp_path)
    assert not again.is_done(sample("a"))
    assert again.is_done(failure("a", DUPLICATE_ID))
    assert not again.is_done(failure("a", DUPLICATE_ID))


@pytest.mark.parametrize("folder", ["rows", "failures"])
def test_a_part_file_that_cannot_be_read_is_named(tmp_path, folder):
    sink = open_sink(tmp_path)
    sink.write(embed_rows("a"), [failure("b")])
    sink.commit()
    part = tmp_path / folder / "part-00000.parquet"
    whole = part.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"PAR1" + bytes(len(whole) - 8) + b"PAR1"):
        part.write_bytes(damaged)
        with pytest.raises(OutputError, match=r"part-00000.parquet is not readable.*delete .*part-00000\.\*"):
            open_sink(tmp_path)
    part.write_bytes(whole)
    assert open_sink(tmp_path).done_count == 2


def test_flipped_bits_among_the_ids_do_not_pass_for_ids(tmp_path):
    sink = open_sink(tmp_path)
    sink.write(embed_rows(*(f"photos/{i}.jpg" for i in range(100))), [])
    sink.commit()
    part = tmp_path / "rows/part-00000.parquet"
    ids = pq.read_metadata(part).row_group(0).column(0)
    whole = part.read_bytes()
    for back in range(1, 60):
        damaged = bytearray(whole)
        damaged[ids.data_page_offset + ids.total_compressed_size - back] ^= 1
        part.write_bytes(damaged)
        with pytest.raises(OutputError, match="not readable"):
            open_sink(tmp_path)


def test_rows_of_another_width_or_normalisation_are_refused(tmp_path):
    sink = open_sink(tmp_path)
    sink.write(embed_rows("a"), [])
    sink.commit()
    with pytest.raises(OutputError, match=r"vdali.width is '4' there and '5' now"):
        open_sink(tmp_path).write(embed_rows("b", width=5), [])
    raw = ModelSpec(name="toy", task=Task.EMBED, preprocess=PREPROCESS, normalize=False)
    with pytest.raises(OutputError, match=r"vdali.normalize is 'true' there and 'false' now"):
        open_sink(tmp_path, raw).write(embed_rows("b"), [])
    assert ids_in(tmp_path / "rows") == ["a"]


def test_each_part_is_on_disk_before_it_gets_its_name_and_rows_come_first(tmp_path, monkeypatch):
    steps: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor: int) -> None:
        steps.append(("fsync", os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)))
        fsync(descriptor)

    def recording_replace(source, target) -> None:
        steps.append(("rename", os.path.relpath(target, tmp_path)))
        replace(source, target)

    sink = open_sink(tmp_path)
    sink.write(embed_rows("a"), [failure("b")])
    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    sink.commit()
    assert steps == [
        (step, name.format(folder))
        for folder in ("rows", "failures")
        for step, name in (
            ("fsync", "{}/.tmp-part-00000.parquet"),
            ("rename", "{}/part-00000.parquet"),
            ("fsync", "{}"),
        )
    ]


def test_a_commit_that_failed_half_way_is_completed_by_the_next_without_repeating_a_row(tmp_path):
    sink = open_sink(tmp_path)
    sink.write(embed_rows("a"), [failure("b")])
    (tmp_path / "failures").rename(tmp_path / "elsewhere")
    with pytest.raises(VdaliError, match=r"Cannot write .*failures/part-00000.parquet: No such file"):
        sink.commit()
    assert ids_in(tmp_path / "rows") == ["a"]
    (tmp_path / "elsewhere").rename(tmp_path / "failures")
    sink.write(embed_rows("c"), [failure("d")])
    sink.commit()
    assert ids_in(tmp_path / "rows") == ["a", "c"]
    assert ids_in(tmp_path / "failures") == ["b", "d"]


def test_the_sink_costs_little_beside_the_decode_of_a_picture(tmp_path):
    sink = open_sink(tmp_path)
    vectors = np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32)
    start = time.process_time()
    for i in range(512):
        rows = {"embedding": vectors, "salvaged": np.zeros(8, bool)}
        sink.write(Rows([f"photos/{i}-{k}.jpg" for k in range(8)], rows), [])
    assert (time.process_time() - start) / 4096 < 200e-6


def test_an_out_whose_path_looks_like_a_partition_reads_as_it_is(tmp_path):
    out = tmp_path / "id=7"
    sink = open_sink(out)
    sink.write(embed_rows("a"), [failure("b", retryable=True), failure("c")])
    sink.commit()
    open_sink(out)
    assert pa.parquet.ParquetFile(out / "failures/part-00000.parquet").read()["id"].to_pylist() == ["c"]
