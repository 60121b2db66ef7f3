"""The data path on real decoders and engines: what becomes of failing batches, and of rows that buffers remember."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import IR_VERSION, OPSET, mean_colour_model, nan_colour_model, plain_preprocess
from onnx import TensorProto, helper, numpy_helper
from pictures import colour_of, encoded, number_of
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.batch import Batch, Encoded, Failure, Outcome, Rows, Sample
from vdali.engine.decoders.interface import DecodeOptions, Decoder
from vdali.engine.decoders.make import DecoderName, make_decoder
from vdali.engine.device import HostDevice
from vdali.engine.errors import ReadError
from vdali.engine.pipeline import batches_of, cpu_lane, run
from vdali.engine.scheduler import Scheduler
from vdali.engine.spec import INPUT_NAME, METADATA_KEY, ModelSpec, Task

SIZE = (8, 8)
CAPACITY = 10
POISON = 255
FRAGILE = 200  # more red than that makes the fragile model fail


def fragile_model(path: Path) -> Path:
    """Mean colour model that really fails inside ONNX Runtime when any picture of the batch is very red."""
    nodes = [
        helper.make_node("Cast", [INPUT_NAME], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels", "axes"], ["mean"], keepdims=0),
        helper.make_node("Split", ["mean"], ["red", "green", "blue"], axis=1, num_outputs=3),
        helper.make_node("Greater", ["red", "limit"], ["is_red"]),
        helper.make_node("Cast", ["is_red"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["one_zero", "index"], ["zero"]),  # index 1 is out of bounds
        helper.make_node("Add", ["mean", "zero"], ["embedding"]),
    ]
    constants = {
        "axes": np.array([1, 2]),
        "limit": np.array(FRAGILE, np.float32),
        "one_zero": np.zeros(1, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "fragile",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["n", *SIZE, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    spec = ModelSpec("fragile", Task.EMBED, plain_preprocess(SIZE), raw_output="embedding", weights="none")
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.save(model, path)
    return path


class PoisoningDecoder:
    """A decoder that finds its buffer full of another picture, as a reused buffer is."""

    def __init__(self, decoder: Decoder) -> None:
        self.name = decoder.name
        self.close = decoder.close
        self._decoder = decoder

    def decode(self, samples: Sequence[Encoded], out: np.ndarray) -> Batch:
        out.fill(POISON)
        return self._decoder.decode(samples, out)


class ListSink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Rows, list[Failure]]] = []
        self.commits = 0

    def is_done(self, entry: Sample | Failure) -> bool:
        return False

    def write(self, rows: Rows, failures: Sequence[Failure]) -> None:
        self.outcomes.append((rows, list(failures)))

    def commit(self) -> None:
        self.commits += 1

    def close(self) -> None: ...

    @property
    def rows(self) -> dict[str, np.ndarray]:
        return {
            sample_id: vector
            for rows, _ in self.outcomes
            if len(rows)
            for sample_id, vector in zip(rows.ids, rows.columns["embedding"], strict=True)
        }

    @property
    def failures(self) -> dict[str, Failure]:
        return {failure.id: failure for _, failures in self.outcomes for failure in failures}


def sample(number: int, data: bytes | None = None) -> Sample:
    return Sample(str(number), lambda: encoded(number, "PNG", (12, 9)) if data is None else data)


@pytest.fixture(params=[DecoderName.TURBO, DecoderName.DALI, DecoderName.PILLOW])
def decoder(request) -> Decoder:
    return PoisoningDecoder(make_decoder(request.param, plain_preprocess(SIZE), DecodeOptions(), max_batch=CAPACITY))


@pytest.fixture
def pillow() -> Decoder:
    return PoisoningDecoder(
        make_decoder(DecoderName.PILLOW, plain_preprocess(SIZE), DecodeOptions(), max_batch=CAPACITY)
    )


def run_batches(model: Path, decoder: Decoder, batches: Iterable[Sequence[Sample | Failure]]) -> list[Outcome]:
    engine = OnnxRuntimeEngine(model)
    scheduler = Scheduler([cpu_lane(HostDevice(), 0, decoder, engine, CAPACITY)])
    try:
        return list(scheduler.run(batches))
    finally:
        scheduler.close()


def run_all(model: Path, decoder: Decoder, entries: Iterable[Sample | Failure], batch_size: int = CAPACITY) -> ListSink:
    scheduler = Scheduler([cpu_lane(HostDevice(), 0, decoder, OnnxRuntimeEngine(model), CAPACITY)])
    sink = ListSink()
    try:
        run(entries, scheduler, sink, batch_size=batch_size)
    finally:
        scheduler.close()
    return sink


@pytest.mark.parametrize("sizes", [(8, 3, 8, 1), (10, 2, 10)])
def test_outputs_hold_exactly_the_rows_of_each_batch_whatever_came_before(tmp_path, decoder, sizes):
    model = mean_colour_model(tmp_path / "m.onnx", SIZE)
    numbers = iter(range(256, 300))
    batches = [[sample(next(numbers), encoded(256 + k, "JPEG", (40, 30))) for k in range(size)] for size in sizes]
    outcomes = run_batches(model, decoder, batches)
    alone = run_batches(model, decoder, [[entry] for batch in batches for entry in batch])
    assert [len(outcome.rows) for outcome in outcomes] == list(sizes)
    vectors = np.concatenate([outcome.rows.columns["embedding"] for outcome in outcomes])
    assert np.array_equal(vectors, np.concatenate([outcome.rows.columns["embedding"] for outcome in alone]))
    assert [number_of(vector) for vector in vectors] == [256 + k for size in sizes for k in range(size)]


def test_a_bad_picture_leaves_no_gap_and_no_old_pixels_in_its_batch(tmp_path, decoder):
    model = mean_colour_model(tmp_path / "m.onnx", SIZE)
    bad = {0, 3, 4, 9}  # first, in the middle, last of the batch of ten
    entries = [sample(i, b"<html>" if i % 10 in bad else encoded(i, "JPEG", (30, 20))) for i in range(27)]
    sink = run_all(model, decoder, entries)
    assert {int(key) for key in sink.failures} == {i for i in range(27) if i % 10 in bad}
    assert {int(key): number_of(vector) for key, vector in sink.rows.items()} == {
        i: i for i in range(27) if i % 10 not in bad
    }


def test_a_batch_of_nothing_but_bad_pictures_ends_as_failures_and_the_next_one_is_unharmed(tmp_path, decoder):
    model = mean_colour_model(tmp_path / "m.onnx", SIZE)
    entries = [sample(i, b"" if i % 2 else b"GIF89a") for i in range(CAPACITY)] + [sample(77)]
    sink = run_all(model, decoder, entries)
    assert len(sink.failures) == CAPACITY
    assert {key: number_of(vector) for key, vector in sink.rows.items()} == {"77": 77}
    assert len(sink.outcomes) == 2


def test_when_the_engine_fails_on_a_batch_only_the_sample_that_is_at_fault_is_lost(tmp_path, pillow):
    model = fragile_model(tmp_path / "m.onnx")
    red = {3, 14}
    entries = [
        sample(i, encoded(15 if i in red else i % 8, "PNG", (9, 9)))  # colour 15 is (248, 8, 8)
        for i in range(17)
    ]
    assert colour_of(15)[0] > FRAGILE > colour_of(8)[0]
    sink = run_all(model, pillow, entries)
    assert {int(key) for key in sink.failures} == red
    assert {(failure.stage, failure.kind) for failure in sink.failures.values()} == {("infer", "runtime_error")}
    assert "out of data bounds" in sink.failures["3"].message
    assert {int(key): number_of(vector) for key, vector in sink.rows.items()} == {
        i: i % 8 for i in range(17) if i not in red
    }
    assert list(sink.rows) == [str(i) for i in range(17) if i not in red]


def test_a_batch_that_the_engine_refuses_altogether_ends_as_failures_with_its_reason(tmp_path, pillow):
    entries = [sample(i, encoded(15, "PNG", (9, 9))) for i in range(4)]
    sink = run_all(fragile_model(tmp_path / "m.onnx"), pillow, entries, batch_size=1)
    assert not sink.rows
    assert [failure.kind for failure in sink.failures.values()] == ["runtime_error"] * 4


def test_a_picture_whose_vector_is_nan_fails_and_its_neighbours_keep_theirs(tmp_path, pillow):
    model = nan_colour_model(tmp_path / "m.onnx", colour_of(5), SIZE)
    sink = run_all(model, pillow, [sample(i) for i in range(12)])
    assert [(failure.id, failure.stage, failure.kind) for failure in sink.failures.values()] == [
        ("5", "infer", "non_finite")
    ]
    assert [number_of(vector) for vector in sink.rows.values()] == [i for i in range(12) if i != 5]
    assert all(np.isfinite(vector).all() for vector in sink.rows.values())


def test_failures_of_the_source_travel_along_in_order(tmp_path, pillow):
    model = mean_colour_model(tmp_path / "m.onnx", SIZE)
    entries: list[Sample | Failure] = []
    for i in range(60):
        entries.append(Failure(f"lost {i}", "source", "dead_link", "leads nowhere") if i % 3 else sample(i))
    sink = run_all(model, pillow, entries, batch_size=4)
    assert list(sink.rows) == [str(i) for i in range(0, 60, 3)]
    assert list(sink.failures) == [f"lost {i}" for i in range(60) if i % 3]
    ended: list[int] = []
    for rows, failures in sink.outcomes:
        here = sorted([int(key) for key in rows.ids] + [int(failure.id[5:]) for failure in failures])
        ended += here
        assert len(rows) <= 4
    assert ended == list(range(60))


def test_a_source_of_failures_alone_does_not_gather_them_all_first():
    taken = 0

    def failures():
        nonlocal taken
        for i in range(1000):
            taken += 1
            yield Failure(str(i), "source", "dead_link", "leads nowhere")

    first = next(iter(batches_of(failures(), 4)))
    assert len(first) == taken == 32


def test_bytes_that_cannot_be_read_fail_alone(tmp_path, pillow):
    def unreadable() -> bytes:
        raise ReadError("timeout", "no answer in 5 s", retryable=True)

    entries = [sample(0), Sample("gone", unreadable), sample(2)]
    sink = run_all(mean_colour_model(tmp_path / "m.onnx", SIZE), pillow, entries)
    assert list(sink.rows) == ["0", "2"]
    assert sink.failures["gone"] == Failure("gone", "read", "timeout", "no answer in 5 s", retryable=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_ends_a_run_all_that_reached_the_sink_is_committed_once(tmp_path, pillow, error):
    engine = OnnxRuntimeEngine(mean_colour_model(tmp_path / "m.onnx", SIZE))
    scheduler = Scheduler([cpu_lane(HostDevice(), 0, pillow, engine, CAPACITY)])
    sink = ListSink()

    def stop(outcome: Outcome) -> None:
        if "9" in outcome.rows.ids:
            raise error

    with pytest.raises(error):
        run((sample(i) for i in range(1000)), scheduler, sink, batch_size=2, on_outcome=stop)
    scheduler.close()
    assert list(sink.rows) == [str(i) for i in range(10)]
    assert sink.commits == 1
