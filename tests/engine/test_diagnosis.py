"""Diagnoses of runs that were rigged to be held back by one thing, and the arithmetic behind the verdict."""

from __future__ import annotations

import io
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import IR_VERSION, OPSET, mean_colour_model, plain_preprocess
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from vdali.engine.batch import Failure, Sample
from vdali.engine.decoders.interface import DecodeMode, DecodeOptions
from vdali.engine.decoders.make import DecoderName
from vdali.engine.device import HostDevice
from vdali.engine.diagnosis import diagnose
from vdali.engine.diagnosis_advice import Alternative, advise, useful_lanes, verdict_of
from vdali.engine.diagnosis_copies import copy_costs
from vdali.engine.diagnosis_model import (
    DECODE,
    DOWNLOAD,
    INFER,
    LISTING,
    READ,
    ROWS,
    SINK,
    UPLOAD,
    PipelineModel,
    Resource,
    StageCost,
)
from vdali.engine.diagnosis_prediction import predicted_throughput
from vdali.engine.errors import InputNotFoundError, ModelError, ReadError, UsageError
from vdali.engine.lanes import LaneOptions
from vdali.engine.sources.open import open_source
from vdali.engine.spec import INPUT_NAME, METADATA_KEY, ModelSpec, Task


class RiggedSource:
    """The same pictures for ever under ``count`` names; each read waits ``wait_s``, or only the first of its name."""

    def __init__(self, pictures: list[bytes], count: int, wait_s: float = 0.0, *, only_first: bool = False) -> None:
        self.ignored: Counter[str] = Counter()
        self._pictures = pictures
        self._count = count
        self._wait_s = wait_s
        self._only_first = only_first
        self._seen: set[int] = set()

    def describe(self) -> str:
        return "rigged source"

    def __iter__(self) -> Iterator[Sample | Failure]:
        for number in range(self._count):
            yield Sample(str(number), lambda number=number: self._read(number))

    def _read(self, number: int) -> bytes:
        if not (self._only_first and number in self._seen):
            _wait(self._wait_s)
        self._seen.add(number)
        if number == 3:
            raise ReadError("gone", "was deleted")
        return self._pictures[number % len(self._pictures)]


def _wait(seconds: float) -> None:
    if seconds:  # even a sleep of nothing gives the CPU away
        time.sleep(seconds)


def photo(width: int, height: int, kind: str = "JPEG") -> bytes:
    """A picture with as much detail as a photo has."""
    rng = np.random.default_rng(width)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def light_model(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("light") / "mean.onnx", (8, 8))


@pytest.fixture(scope="module")
def heavy_model(tmp_path_factory) -> Path:
    """Embed model whose convolutions of 48 channels take some milliseconds a picture."""
    path = tmp_path_factory.mktemp("heavy") / "heavy.onnx"
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", [INPUT_NAME], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["pixels"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "second"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["c", "axes"], ["embedding"], keepdims=0),
    ]
    constants = {
        "first": rng.normal(0, 0.01, (48, 3, 3, 3)).astype(np.float32),
        "second": rng.normal(0, 0.01, (48, 48, 3, 3)).astype(np.float32),
        "axes": np.array([2, 3]),
    }
    graph = helper.make_graph(
        nodes,
        "heavy",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["n", 48, 48, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", 48])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    spec = ModelSpec("heavy", Task.EMBED, plain_preprocess((48, 48)), raw_output="embedding", weights="random")
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.save(model, path)
    return path


def test_a_slow_disk_is_found_and_more_lanes_are_advised(light_model):
    source = RiggedSource([photo(40, 30)], 2000, wait_s=0.1)
    found = diagnose(light_model, source, lanes=LaneOptions(lanes=1, micro_batch=1), device="cpu", seconds=0.5)
    assert (found.resource, found.stage) == (Resource.DISK, READ)
    assert found.verdict.startswith("input-bound: a read waits 1")
    assert 7.5 < found.throughput <= 10
    assert found.engine_idle > 0.9
    first = found.advice[0]
    assert list(first.options) == ["lanes"]
    assert first.gain == pytest.approx(first.options["lanes"], rel=0.15)
    assert f"with --lanes {first.options['lanes']}" in found.verdict


def test_heavy_decoding_before_a_tiny_model_is_found_and_a_cheaper_decode_is_advised_first(light_model):
    options = LaneOptions(decode=DecodeOptions(mode=DecodeMode.EXACT), micro_batch=2)
    source = RiggedSource([photo(1600, 1200)], 2000)
    found = diagnose(light_model, source, lanes=options, device="cpu", seconds=0.6, images=24)
    assert (found.resource, found.stage) == (Resource.CPU, DECODE)
    assert re.match(r"input-bound: decode takes (9\d|100) %", found.verdict)
    assert dict(found.advice[0].options) == {"decode": "fast"}
    assert found.advice[0].gain > 1.2
    assert any("more CPU" in advice.change and not advice.options for advice in found.advice)


def test_a_heavy_model_on_tiny_pictures_is_found(heavy_model):
    source = RiggedSource([photo(16, 16, "PNG")], 5000)
    found = diagnose(heavy_model, source, lanes=LaneOptions(micro_batch=2), device="cpu", seconds=0.5, images=32)
    assert (found.resource, found.stage) == (Resource.CPU, INFER)
    assert re.match(r"engine-bound: the engine takes (9\d|100) %", found.verdict)
    assert any("twice as fast" in advice.change for advice in found.advice)
    shares = {stage.name: stage.cpu_share for stage in found.stages}
    assert shares[INFER] > 0.9
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_first_pass_that_is_slower_than_the_second_is_told_and_judged_by(light_model):
    source = RiggedSource([photo(40, 30)], 3000, wait_s=0.02, only_first=True)
    found = diagnose(light_model, source, device="cpu", seconds=0.6, images=64)
    assert (found.resource, found.stage) == (Resource.DISK, READ)
    assert any("the first time" in note and "again" in note for note in found.notes)
    assert any("not in the page cache" in note for note in found.notes)


def test_another_decoder_is_advised_where_it_is_cheaper(light_model):
    exact = DecodeOptions(mode=DecodeMode.EXACT)
    options = LaneOptions(decoder=DecoderName.PILLOW, decode=exact, micro_batch=2)
    source = RiggedSource([photo(800, 600)], 2000)
    found = diagnose(light_model, source, lanes=options, device="cpu", seconds=0.45, images=16)
    assert found.stage == DECODE
    assert {"decoder"} in [set(advice.options) for advice in found.advice]


def test_on_a_cpu_the_copies_are_absent_and_the_report_says_so(light_model, tmp_path):
    source = RiggedSource([photo(40, 30)], 500)
    lines: list[str] = []
    found = diagnose(light_model, source, device="cpu", seconds=0.2, images=16, scratch=tmp_path, report=lines.append)
    document = json.loads(json.dumps(found.to_json()))
    stages = {stage["name"]: stage for stage in document["stages"]}
    assert list(stages) == [LISTING, READ, DECODE, UPLOAD, INFER, DOWNLOAD, ROWS, SINK]
    assert "runs on the CPU" in stages[UPLOAD]["absent"]
    assert "runs on the CPU" in stages[DOWNLOAD]["absent"]
    assert all(stages[name]["cpu_ms_per_sample"] > 0 for name in (READ, DECODE, INFER, ROWS, SINK))
    assert document["settings"]["engine"] == "onnxruntime:CPUExecutionProvider"
    assert "1 of the samples could not be read" in " ".join(document["notes"])
    assert len(lines) == 3
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_make_no_sense_are_refused(light_model):
    source = RiggedSource([photo(40, 30)], 5)
    for words in ({"images": 0}, {"seconds": 0.0}, {"seconds": float("nan")}):
        with pytest.raises(UsageError, match="images >= 1 and seconds > 0"):
            diagnose(light_model, source, device="cpu", **words)


def test_a_source_of_nothing_usable_and_a_missing_model_are_plain_errors(light_model, tmp_path):
    with pytest.raises(ModelError, match="No model file"):
        diagnose(tmp_path / "none.onnx", RiggedSource([b""], 5), device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputNotFoundError, match="No image could be read"):
        diagnose(light_model, open_source([str(tmp_path / "empty")]), device="cpu", seconds=0.1)
    with pytest.raises(InputNotFoundError, match="None of the first 4 images"):
        diagnose(light_model, RiggedSource([b"<html>"], 5), device="cpu", seconds=0.1)


CHEAP = StageCost(1e-6, 1e-6)


def cpu_model(**costs: StageCost) -> PipelineModel:
    """Two CPUs and two lanes; every stage is cheap unless it is given."""
    all_costs = {LISTING: CHEAP, READ: CHEAP, DECODE: CHEAP, INFER: CHEAP, ROWS: CHEAP, SINK: CHEAP} | costs
    return PipelineModel(all_costs, lanes=2, cpus=2, turns=((READ, DECODE, INFER, ROWS),))


def gpu_model(**costs: StageCost) -> PipelineModel:
    """Two CPUs and two lanes before a GPU that copies in, infers and copies out on streams of their own."""
    all_costs = {LISTING: CHEAP, READ: CHEAP, DECODE: CHEAP, INFER: CHEAP, ROWS: CHEAP, SINK: CHEAP}
    all_costs |= {UPLOAD: CHEAP, DOWNLOAD: CHEAP}
    turns = ((READ, DECODE), (ROWS,))
    single = ((LISTING, SINK), (INFER,), (UPLOAD,), (DOWNLOAD,))
    return PipelineModel(all_costs | costs, lanes=2, cpus=2, turns=turns, single=single, depth=4)


def busy(ms: float) -> StageCost:
    return StageCost(1e-3 * ms, 1e-3 * ms)


def waits(ms: float) -> StageCost:
    return StageCost(1e-3 * ms, 1e-5)


@pytest.mark.parametrize(
    ("model", "resource", "stage", "rate"),
    [
        (cpu_model(decode=busy(8), engine=busy(2)), Resource.CPU, DECODE, 200),
        (cpu_model(decode=busy(2), engine=busy(8)), Resource.CPU, INFER, 200),
        (cpu_model(read=waits(40), decode=busy(2)), Resource.DISK, READ, 47.6),
        (cpu_model(sink=waits(20), decode=busy(2)), Resource.SINK, SINK, 50),
        (cpu_model(listing=busy(20), decode=busy(2)), Resource.LISTING, LISTING, 50),
        (gpu_model(decode=busy(1), engine=waits(4)), Resource.GPU, INFER, 250),
        (gpu_model(decode=busy(8), engine=waits(1)), Resource.CPU, DECODE, 250),
        (gpu_model(decode=busy(1), **{UPLOAD: waits(5)}), Resource.PCIE, UPLOAD, 200),
        (gpu_model(decode=busy(1), **{UPLOAD: waits(5), DOWNLOAD: waits(4)}), Resource.PCIE, UPLOAD, 200),
    ],
)
def test_the_smallest_limit_names_resource_stage_and_rate(model, resource, stage, rate):
    assert (model.limit.resource, model.limit.stage) == (resource, stage)
    assert model.throughput == pytest.approx(rate, rel=0.01)


def test_one_lane_on_two_cpus_is_lane_bound_and_a_second_lane_doubles_it():
    model = PipelineModel(cpu_model(decode=busy(5), engine=busy(5)).costs, 1, 2, ((READ, DECODE, INFER, ROWS),))
    assert model.limit.resource is Resource.LANES
    assert useful_lanes(model) == 2
    advice = advise(model, 90.0, [], micro_batch=8)
    assert advice[0].change == "--lanes 2"
    assert advice[0].throughput == pytest.approx(180, rel=0.02)
    assert "lane-bound: 1 lane uses 50 % of 2 CPUs" in verdict_of(model, 90.0, advice)


def test_on_a_gpu_the_sentence_tells_rates_idle_time_and_the_cpus_that_would_feed_it():
    model = gpu_model(decode=busy(1e3 * 2 / 412), engine=waits(1e3 / 1903))
    advice = advise(model, model.throughput, [], micro_batch=8, gpu_decode=True)
    assert re.fullmatch(
        r"input-bound: decode 412 images/s, engine 1,903; the engine idles 78 % of the time; with decoding on the GPU, "
        r"or 8 more CPUs, expect about 1,9\d\d images/s \(4\.6x\)",
        verdict_of(model, model.throughput, advice),
    )


def test_a_change_of_one_option_is_advised_once_and_at_its_best():
    model = cpu_model(engine=busy(10))
    tried = [
        Alternative(f"--micro-batch {size}", {"micro_batch": size}, INFER, busy(cost))
        for size, cost in ((4, 8.0), (16, 5.0), (32, 9.9))
    ]
    advice = advise(model, 150.0, tried, micro_batch=8)
    assert [dict(item.options) for item in advice if item.options] == [{"micro_batch": 16}]
    assert advice[0].gain == pytest.approx(2.0, rel=0.01)
    assert advice[0].throughput == pytest.approx(300, rel=0.01)


@pytest.mark.parametrize(
    "model",
    [
        cpu_model(decode=busy(8), engine=busy(2)),
        cpu_model(read=waits(40), decode=busy(2)),
        PipelineModel(cpu_model(read=waits(10), decode=busy(2)).costs, 8, 2, ((READ, DECODE, INFER, ROWS),)),
        PipelineModel(cpu_model(decode=busy(5), engine=busy(5)).costs, 1, 2, ((READ, DECODE, INFER, ROWS),)),
        PipelineModel(cpu_model(decode=busy(5), engine=busy(5)).costs, 8, 2, ((READ, DECODE, INFER, ROWS),)),
        cpu_model(sink=waits(20), decode=busy(2)),
        gpu_model(decode=busy(1), engine=waits(4)),
        gpu_model(decode=busy(8), engine=waits(1)),
        gpu_model(decode=busy(1), **{UPLOAD: waits(5), DOWNLOAD: waits(4)}),
    ],
)
def test_the_simulated_machine_agrees_with_the_closed_forms(model):
    assert predicted_throughput(model, 8) == pytest.approx(model.throughput, rel=0.05)


def test_a_gpu_behind_lanes_that_take_turns_waits_for_them_and_they_for_it():
    costs = cpu_model(decode=busy(4), engine=waits(4)).costs
    turns, single = ((READ, DECODE, INFER, ROWS),), ((LISTING, SINK), (INFER,))
    one, two = (PipelineModel(costs, lanes, 4, turns, single) for lanes in (1, 2))
    assert predicted_throughput(one, 8) == pytest.approx(125, rel=0.02)
    assert predicted_throughput(two, 8) == pytest.approx(250, rel=0.05)
    assert two.limit.stage == INFER


def test_copies_are_costed_for_a_sample_and_all_memory_is_given_back():
    class CountingDevice(HostDevice):
        held = copied = 0

        def allocate(self, shape, dtype):
            CountingDevice.held += 1
            return super().allocate(shape, dtype)

        def allocate_pinned(self, shape, dtype):
            CountingDevice.held += 1
            return super().allocate_pinned(shape, dtype)

        def release(self, buffer) -> None:
            CountingDevice.held -= 1

        def copy(self, target, source, *, stream) -> None:
            CountingDevice.copied += 1
            super().copy(target, source, stream=stream)

    pixels = np.zeros((8, 512, 512, 3), np.uint8)
    costs = copy_costs(CountingDevice(), pixels, {"embedding": np.zeros((8, 4), np.float32)}, 0.1)
    assert CountingDevice.held == 0
    assert CountingDevice.copied >= 32
    assert costs[UPLOAD].wall_s > 10 * costs[DOWNLOAD].wall_s > 0


def test_where_nothing_helps_the_verdict_says_so():
    assert "no change that was looked at" in verdict_of(cpu_model(listing=busy(20)), 50.0, [])
