"""The lane that runs on a GPU, whole: real files, a real DALI pipeline and decoders, on a CUDA runtime that is played.

The fake GPU does nothing before somebody waits for it, and poisons what was read or given back, so that a wait that is
missing shows in the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import BytesIO

import numpy as np
import pyarrow.parquet as pq
import pytest
import vdali
from cuda.bindings import runtime as real
from decoding import encode, photo
from fake_gpu import FakeDeviceEngine, FakeMixedPipeline, colour_spec, mean_colour
from models import mean_colour_model, plain_preprocess
from pictures import KINDS, encoded, number_of, write_numbered
from PIL import Image
from vdali.engine import job
from vdali.engine.backends.interface import DeviceEngine
from vdali.engine.backends.load import LoadedEngine
from vdali.engine.batch import Encoded, Failure, Outcome, Sample
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.cuda.lane import device_lane
from vdali.engine.decoders.dali import built_graph
from vdali.engine.decoders.dali_gpu import DaliGpuDecoder
from vdali.engine.decoders.host_decoders import HostDecoders
from vdali.engine.decoders.interface import DecodeOptions
from vdali.engine.decoders.make import DecoderName, make_decoder
from vdali.engine.decoders.picture_check import PictureCheck
from vdali.engine.errors import DeviceError, ReadError, UsageError
from vdali.engine.gpu_probe import probe_gpu
from vdali.engine.lanes import DEVICE_ROLES, DEVICE_SLOTS, LaneOptions, make_scheduler
from vdali.engine.pipeline import batches_of
from vdali.engine.preprocess import Preprocess
from vdali.engine.scheduler import Scheduler
from vdali.engine.spec import ModelSpec, Task

SIZE = (16, 16)
BATCH = 8
PLAIN = plain_preprocess(SIZE)


def colour_engine(cuda, runtime, **options) -> FakeDeviceEngine:
    return FakeDeviceEngine(cuda, runtime, colour_spec(PLAIN), mean_colour, **options)


def dali_lanes(engine, runtime, *, slots=2, depth=4, lanes=1, spec: Preprocess = PLAIN) -> Scheduler:
    """Scheduler of production lanes, where only the pipeline's device is not a GPU."""

    def pipeline():
        graph = built_graph("cpu", spec, max_batch=BATCH, threads=1, ordinal=None)
        return FakeMixedPipeline(graph, engine.device, runtime)

    compute = engine.device.new_stream("compute")

    def lane(number: int):
        pool = ThreadPoolExecutor(2)
        decode = DecodeOptions()
        host = HostDecoders(lambda: make_decoder(DecoderName.TURBO, spec, decode, max_batch=1), 2, pool)
        decoder = DaliGpuDecoder(
            spec, decode, engine.device, host, max_batch=BATCH, new_pipeline=pipeline, check=PictureCheck(None)
        )
        return device_lane(engine, decoder, pool, compute=compute, name=f"lane-{number}", batch_size=BATCH, slots=slots)

    return Scheduler([lane(number) for number in range(lanes)], depth=depth)


def numbered(number: int, *, kinds: Sequence[str] = ("JPEG",)) -> Sample:
    """Picture whose colour says its number; JPEGs are large enough for the GPU's decoder."""
    return Sample(str(number), lambda: encoded(number, kinds[number % len(kinds)], (40 + number % 7, 33)))


def broken(number: int) -> Sample:
    """A JPEG that looks whole from outside and that no decoder reads: its Huffman tables are gone."""
    data = encoded(number, "JPEG", (48, 40))
    start = data.index(b"\xff\xc4") + 4
    return Sample(str(number), lambda: data[:start] + b"\xff" * 20 + data[start + 20 :])


def refused_by_dali(number: int) -> Sample:
    """A JPEG that Pillow reads and DALI does not: junk between two markers."""
    data = encoded(number, "JPEG", (48, 40))
    at = data.index(b"\xff\xdb")
    return Sample(str(number), lambda: data[:at] + b"junk!" + data[at:])


def unreadable(number: int) -> Sample:
    def read() -> bytes:
        raise ReadError("gone", "It is gone.", retryable=True)

    return Sample(str(number), read)


def outcomes(scheduler: Scheduler, samples: Iterable[Sample | Failure]) -> list[Outcome]:
    with closing(scheduler):
        return list(scheduler.run(batches_of(samples, BATCH)))


def ids_of(found: Iterable[Outcome]) -> list[str]:
    return [sample_id for outcome in found for sample_id in outcome.rows.ids]


def check_colours(found: Iterable[Outcome]) -> None:
    """Every row has the colour of its own picture: a stale, shifted or poisoned row has another."""
    for outcome in found:
        if len(outcome.rows):
            for sample_id, row in zip(outcome.rows.ids, outcome.rows.columns["embedding"], strict=True):
                assert number_of(row) == int(sample_id)


@pytest.mark.parametrize(("slots", "depth", "lanes"), [(1, 1, 1), (1, 3, 1), (3, 5, 1), (2, 3, 2)])
def test_every_picture_gets_its_own_row_in_the_order_of_the_input(cuda, runtime, slots, depth, lanes):
    engine = colour_engine(cuda, runtime)
    found = outcomes(
        dali_lanes(engine, runtime, slots=slots, depth=depth, lanes=lanes),
        (numbered(i, kinds=KINDS) for i in range(93)),
    )
    assert ids_of(found) == [str(number) for number in range(93)]
    check_colours(found)
    decoded_by = sum((outcome.decoded_by for outcome in found[1:]), found[0].decoded_by)
    assert decoded_by == {"dali-gpu": 14, "pillow": 79}
    assert sorted(engine.batches) == [5, *[BATCH] * 11]


def test_sizes_that_change_leave_no_row_of_an_earlier_batch(cuda, runtime):
    engine = colour_engine(cuda, runtime)
    scheduler = dali_lanes(engine, runtime, slots=1, depth=2)
    numbers = iter(range(100))
    groups = [[numbered(next(numbers)) for _ in range(size)] for size in (8, 3, 8, 1, 8, 2, 8)]
    with closing(scheduler):
        found = list(scheduler.run(groups))
    assert [len(outcome.rows) for outcome in found] == [8, 3, 8, 1, 8, 2, 8]
    check_colours(found)


def test_rows_are_those_of_the_cpu(cuda, runtime):
    samples = [Sample(str(i), lambda i=i: encode(photo(100 + 9 * i, 80, seed=i))) for i in range(20)]
    engine = colour_engine(cuda, runtime)
    found = outcomes(dali_lanes(engine, runtime), samples)
    decoder = make_decoder(DecoderName.DALI, PLAIN, DecodeOptions(), max_batch=1)
    for sample, row in zip(samples, np.concatenate([o.rows.columns["embedding"] for o in found]), strict=True):
        pixels = decoder.decode([Encoded(sample.id, sample.read())], np.empty((1, *SIZE, 3), np.uint8)).pixels
        assert np.array_equal(row, mean_colour(pixels)["embedding"][0])
    decoder.close()


def test_a_loss_at_any_stage_costs_nothing_but_itself(cuda, runtime):
    makers = {2: unreadable, 5: broken, 7: refused_by_dali, 8: broken, 15: broken, 16: unreadable, 31: broken}
    samples: list[Sample | Failure] = [makers.get(number, numbered)(number) for number in range(40)]
    samples.insert(20, Failure("lost shard", "source", "unreadable", "The archive ends here."))
    found = outcomes(dali_lanes(colour_engine(cuda, runtime), runtime), samples)
    lost = {failure.id: failure.stage for outcome in found for failure in outcome.failures}
    assert lost == {
        "2": "read", "16": "read", "lost shard": "source", "5": "decode", "8": "decode", "15": "decode", "31": "decode",
    }  # fmt: skip
    assert ids_of(found) == [str(number) for number in range(40) if str(number) not in lost]
    check_colours(found)
    assert found[0].decoded_by == {"dali-gpu": 5, "pillow": 1}


def test_batches_of_nothing_but_losses_never_reach_the_engine(cuda, runtime):
    engine = colour_engine(cuda, runtime)
    found = outcomes(dali_lanes(engine, runtime), [unreadable(i) for i in range(8)] + [broken(i) for i in range(8, 16)])
    assert [len(outcome.failures) for outcome in found] == [8, 8]
    assert engine.batches == []


def contains_red(engine: FakeDeviceEngine, pixels, rows: int) -> str:
    """Refuses what has a very red picture in it; looks at the GPU's memory, as no real engine could."""
    engine.runtime.cudaStreamSynchronize(engine.contexts[0]._stream.handle)
    content = engine.runtime.array(pixels[:rows])
    return "too red" if (content[..., 0].mean(axis=(1, 2)) > 240).any() else ""


def test_a_batch_that_the_engine_refuses_is_tried_picture_by_picture(cuda, runtime):
    engine = colour_engine(cuda, runtime, refuses=contains_red)
    found = outcomes(dali_lanes(engine, runtime, slots=1, depth=3), (numbered(number) for number in range(40)))
    lost = {failure.id: failure for outcome in found for failure in outcome.failures}
    assert {sample_id: (f.stage, f.kind, f.message) for sample_id, f in lost.items()} == {
        "15": ("infer", "refused", "too red"),
        "31": ("infer", "refused", "too red"),
    }
    assert ids_of(found) == [str(number) for number in range(40) if number not in (15, 31)]
    check_colours(found)
    assert engine.batches == [8, 8, *[1] * 8, 8, 8, *[1] * 8, 8]
    assert found[1].decoded_by == {"dali-gpu": 8}


def test_a_single_picture_that_the_engine_refuses_is_not_tried_again(cuda, runtime):
    engine = colour_engine(cuda, runtime, refuses=lambda *_: "no")
    (outcome,) = outcomes(dali_lanes(engine, runtime), [numbered(3)])
    assert [failure.message for failure in outcome.failures] == ["no"]
    assert engine.batches == [1]


def test_an_error_that_is_no_pictures_ends_the_run_after_the_results_before_it(cuda, runtime):
    def breaks(engine: FakeDeviceEngine, pixels, rows: int) -> str:
        if len(engine.batches) == 3:
            raise DeviceError("The GPU fell off the bus. Start again.")
        return ""

    scheduler = dali_lanes(colour_engine(cuda, runtime, refuses=breaks), runtime)
    found = []
    with closing(scheduler), pytest.raises(DeviceError, match="fell off the bus"):
        found.extend(scheduler.run(batches_of((numbered(i) for i in range(80)), BATCH)))
    assert ids_of(found) == [str(number) for number in range(16)]


def test_the_input_is_handed_back_before_the_outputs_are_on_their_way(cuda, runtime):
    """With one slot the next batch decodes while the engine still has to be told of its outputs."""
    engine = colour_engine(cuda, runtime)
    scheduler = dali_lanes(engine, runtime, slots=1, depth=2)
    context, decode = engine.contexts[0], scheduler._lanes[0].stages[1]
    decoding, waited = threading.Event(), []
    enqueue, start = context.enqueue, decode.work

    def slow_enqueue(pixels, outputs, rows, *, stream, consumed=None):
        enqueue(pixels, outputs, rows, stream=stream, consumed=consumed)
        if not waited:
            waited.append(decoding.wait(10))

    def watched_start(value, lease):
        if engine.batches:
            decoding.set()
        return start(value, lease)

    context.enqueue, decode.work = slow_enqueue, watched_start
    found = outcomes(scheduler, (numbered(number) for number in range(24)))
    assert waited == [True]
    check_colours(found)


def test_closing_gives_all_back(cuda, runtime):
    engine = colour_engine(cuda, runtime)
    outcomes(dali_lanes(engine, runtime, slots=3), (numbered(number) for number in range(30)))
    assert all(context.closed for context in engine.contexts)
    assert len(engine.contexts) == 3
    cuda.allocate((1,), np.uint8)  # waits for the frees that are in order before it
    assert len(runtime.memory) == 1


def test_a_lane_that_does_not_fit_leaves_nothing_behind(cuda, runtime):
    runtime.fails["cudaHostAlloc"] = iter([None, None, real.cudaError_t.cudaErrorMemoryAllocation])
    with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
        dali_lanes(colour_engine(cuda, runtime), runtime, slots=3)
    cuda.allocate((1,), np.uint8)
    assert len(runtime.memory) == 1
    assert len(runtime.queues) == 2  # the device's own, and the caller's for compute


def test_a_gpu_that_is_lost_ends_the_run_with_its_error_and_hangs_nobody(runtime):
    device = CudaDevice(0, runtime=runtime)
    scheduler = dali_lanes(colour_engine(device, runtime), runtime)
    results = scheduler.run(batches_of((numbered(number) for number in range(800)), BATCH))
    assert len(next(results).rows) == BATCH
    runtime.lost = real.cudaError_t.cudaErrorIllegalAddress
    with pytest.raises(DeviceError, match=r"cudaErrorIllegalAddress.*can no longer use the GPU\. Start the same"):
        list(results)
    scheduler.close()
    device.close()


def test_masks_leave_the_lane_at_the_size_of_their_sources(cuda, runtime):
    spec = ModelSpec("red", Task.SEGMENT, PLAIN, raw_output="logits", weights="none")
    engine = FakeDeviceEngine(cuda, runtime, spec, lambda pixels: {"mask": (pixels[..., 0] > 127).astype(np.uint8)})
    (outcome,) = outcomes(dali_lanes(engine, runtime), [numbered(number) for number in (0, 15, 2)])
    assert outcome.rows.columns["width"].tolist() == [40, 41, 42]
    levels = [np.asarray(Image.open(BytesIO(png))).mean() for png in outcome.rows.columns["mask_png"]]
    assert levels == [0, 1, 0]


def test_an_engine_of_a_gpu_gets_a_gpus_lanes_and_the_plan_says_so(cuda, runtime):
    engine = colour_engine(cuda, runtime, max_batch=4)
    assert isinstance(engine, DeviceEngine)
    scheduler, plan = make_scheduler(engine, LaneOptions(decoder=DecoderName.TURBO), PLAIN)
    assert (plan.decoder, plan.device, plan.lanes, plan.micro_batch) == ("turbo", "cuda:0", 1, 4)
    assert (plan.depth, plan.slots) == (DEVICE_ROLES, DEVICE_SLOTS)
    with closing(scheduler):
        found = list(scheduler.run(batches_of([numbered(i, kinds=KINDS) for i in range(30)], plan.micro_batch)))
    assert ids_of(found) == [str(number) for number in range(30)]
    check_colours(found)
    assert found[0].decoded_by == {"turbo": 1, "pillow": 3}


def test_depth_and_slots_that_are_asked_for_are_taken(cuda, runtime):
    options = LaneOptions(decoder=DecoderName.PILLOW, depth=7, slots=2, lanes=2)
    scheduler, plan = make_scheduler(colour_engine(cuda, runtime), options, PLAIN)
    scheduler.close()
    assert (plan.depth, plan.slots, plan.lanes) == (7, 2, 2)


def test_a_second_lane_that_does_not_fit_takes_the_first_one_with_it(cuda, runtime):
    no_memory = real.cudaError_t.cudaErrorMemoryAllocation
    runtime.fails["cudaHostAlloc"] = iter([None] * 2 * DEVICE_SLOTS + [no_memory])
    engine = colour_engine(cuda, runtime)
    with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
        make_scheduler(engine, LaneOptions(decoder=DecoderName.TURBO, lanes=2), PLAIN)
    cuda.allocate((1,), np.uint8)
    assert (len(runtime.memory), len(runtime.queues)) == (1, 1)
    assert all(context.closed for context in engine.contexts)


@pytest.mark.parametrize("name", ["depth", "slots", "lanes"])
def test_none_of_something_is_refused(name):
    with pytest.raises(UsageError, match=f"number of {name} must be at least 1, got 0"):
        LaneOptions(**{name: 0})


@pytest.mark.parametrize("name", ["auto", "turbo"])
def test_a_whole_run_on_a_gpu_commits_every_picture_and_says_what_it_used(runtime, tmp_path, monkeypatch, name):
    """`vdali.run` with nothing replaced but the engine that the model's file would become."""
    if probe_gpu().count:
        pytest.skip("this machine has a GPU, which DALI would take")
    write_numbered(tmp_path / "in", 50, bad=frozenset({7, 20}))
    device = CudaDevice(0, runtime=runtime)
    engine = colour_engine(device, runtime)
    monkeypatch.setattr(job, "load_engine", lambda *words, **named: LoadedEngine(engine, "it is played"))
    model = mean_colour_model(tmp_path / "m.onnx", SIZE)
    report = vdali.run(tmp_path / "in", out=tmp_path / "out", model=model, decoder=name, batch_size=8, slots=2)
    assert (report.status, report.rows_total, report.failures_total) == ("finished", 48, 2)
    assert (report.used.engine, report.used.decoder, report.used.micro_batch) == (engine.name, "turbo", 8)
    assert (report.used.device, report.used.slots, report.used.depth) == ("cuda:0", 2, DEVICE_ROLES)
    assert list(report.stages) == ["read", "decode", "infer", "copy", "finish"]
    table = pq.read_table(tmp_path / "out" / "rows")
    for sample_id, vector in zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True):
        assert number_of(np.array(vector)) == int(sample_id[:4])
    assert all(context.closed for context in engine.contexts)
    device.close()
    assert runtime.memory == {}
