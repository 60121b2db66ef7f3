"""The arithmetic behind a diagnosis: limits, predictions, advice and the sentence that tells them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from vdali.engine.device import HostDevice
from vdali.engine.diagnosis.advice import Alternative, advise, useful_lanes, verdict_of
from vdali.engine.diagnosis.copies import copy_costs
from vdali.engine.diagnosis.model import (
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
from vdali.engine.diagnosis.prediction import predicted_throughput

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
