"""The lane of a GPU with the real TensorRT backend, on a TensorRT and a CUDA runtime that are played."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from fake_plans import SIZE, opened
from fake_tensorrt import FakeTensorRT
from models import plain_preprocess
from pictures import KINDS, encoded, number_of
from vdali.engine.backends.interface import DeviceEngine
from vdali.engine.backends.tensorrt import TensorRTOptions
from vdali.engine.batch import Outcome, Sample
from vdali.engine.decoders.make import DecoderName
from vdali.engine.lanes import LaneOptions, make_scheduler
from vdali.engine.pipeline import batches_of

PLAIN = plain_preprocess(SIZE)
COUNT = 61


@pytest.fixture(params=[False, True], ids=["tensorrt", "tensorrt_rtx"])
def trt(request, runtime) -> FakeTensorRT:
    return FakeTensorRT(runtime, is_rtx=request.param)


def outcomes(engine: DeviceEngine, **options: int) -> list[Outcome]:
    """What becomes of COUNT numbered pictures, with the engine closed at the end."""
    samples = (
        Sample(str(number), lambda number=number: encoded(number, KINDS[number % len(KINDS)], (20, 16)))
        for number in range(COUNT)
    )
    with closing(engine):
        scheduler, plan = make_scheduler(engine, LaneOptions(decoder=DecoderName.TURBO, **options), PLAIN)
        with closing(scheduler):
            return list(scheduler.run(batches_of(samples, plan.micro_batch)))


def check_all(found: list[Outcome], lost: tuple[int, ...] = ()) -> None:
    ids = [sample_id for outcome in found for sample_id in outcome.rows.ids]
    assert ids == [str(number) for number in range(COUNT) if number not in lost]
    for outcome in found:
        if len(outcome.rows):
            vectors = outcome.rows.columns["embedding"]
            assert [number_of(vector) for vector in vectors] == [int(sample_id) for sample_id in outcome.rows.ids]


@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize(("slots", "depth", "lanes"), [(1, 2, 1), (3, 5, 1), (2, 3, 2)])
def test_overlapped_batches_of_a_plan_are_all_their_own(trt, runtime, tmp_path, cuda_graphs, slots, depth, lanes):
    engine = opened(trt, runtime, tmp_path, options=TensorRTOptions(cuda_graphs=cuda_graphs))
    check_all(outcomes(engine, slots=slots, depth=depth, lanes=lanes))
    assert runtime.memory == {}
    assert runtime.queues == {}


def test_a_plan_for_no_less_than_four_rows_takes_single_pictures_too(trt, runtime, tmp_path):
    """The last batch has one row, and so has each of a batch that is refused as a whole."""
    engine = opened(trt, runtime, tmp_path, smallest=4)
    check_all(outcomes(engine, micro_batch=4))


def test_a_batch_that_tensorrt_refuses_is_lost_picture_by_picture_and_the_rest_goes_on(trt, runtime, tmp_path):
    engine = opened(trt, runtime, tmp_path)
    starts = iter(range(10_000))
    new_context = engine.new_context

    def refusing(stream):
        context = new_context(stream)
        enqueue = context.enqueue

        def once_refused(*words, **named):
            number = next(starts)
            trt.refuses = {"execute_async_v3": "no resources"} if number in (2, 5) else {}
            enqueue(*words, **named)

        context.enqueue = once_refused
        return context

    engine.new_context = refusing
    found = outcomes(engine)
    failures = [failure for outcome in found for failure in outcome.failures]
    # the third batch is refused; of its pictures, tried as calls 3 to 10, the one of call 5 again
    assert [(failure.id, failure.stage) for failure in failures] == [("18", "infer")]
    assert "no resources" in failures[0].message
    check_all(found, lost=(18,))


def test_the_rows_of_a_lane_are_those_of_infer(trt, runtime, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, *SIZE, 3), dtype=np.uint8)
    engine = opened(trt, runtime, tmp_path)
    assert isinstance(engine, DeviceEngine)
    alone = engine.infer(pixels)["embedding"]
    assert np.allclose(alone, pixels.mean(axis=(1, 2)), atol=1e-3)
    check_all(outcomes(engine))
