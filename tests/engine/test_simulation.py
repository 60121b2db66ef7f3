"""The simulated machine against closed forms, and against the clock on the wall."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from statistics import mean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdali.engine.device import HostStream
from vdali.engine.errors import UsageError
from vdali.engine.scheduler import Scheduler
from vdali.engine.simulation import StageModel, _costs, simulate
from vdali.engine.stages import Lane, Role, Stage

GPU = {
    "decode": StageModel(0.007, role=Role.IN),
    "infer": StageModel(0.010, role=Role.COMPUTE),
    "copy": StageModel(0.002, role=Role.OUT),
    "write": StageModel(0.003),
}


def slowest_s(stages: dict[str, StageModel]) -> float:
    """Least seconds between two batches, whatever the depth: streams of a role do its stages in turn."""
    by_role: dict[Role | None, float] = {}
    for model in stages.values():
        by_role[model.role] = by_role.get(model.role, 0.0) + model.mean_s / model.lanes
    return max(by_role.values())


def sum_s(stages: dict[str, StageModel]) -> float:
    return sum(model.mean_s for model in stages.values())


def test_with_one_batch_in_flight_each_takes_the_sum_of_its_stages():
    found = simulate(GPU, depth=1, batches=50, batch_size=16)
    assert found.throughput_samples_per_s == pytest.approx(16 / sum_s(GPU))


def test_with_enough_in_flight_only_the_slowest_stage_counts():
    batches = 400
    for depth in (3, 4, 8):
        found = simulate(GPU, depth=depth, batches=batches)
        total_s = sum_s(GPU) + (batches - 1) * slowest_s(GPU)
        assert found.throughput_samples_per_s == pytest.approx(batches / total_s)
    assert found.bottleneck == "infer"
    assert found.idle_share["compute"] == pytest.approx(1 - 0.010 * batches / total_s)
    assert found.idle_share["sink"] == pytest.approx(1 - 0.003 * batches / total_s)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_between_them_the_depth_counts(depth):
    """Stages that take the same: of n of them, ``depth`` can be at work."""
    stages = {role.value: StageModel(0.01, role=role) for role in Role}
    found = simulate(stages, depth=depth, batches=1000)
    assert found.throughput_samples_per_s == pytest.approx(depth / 0.05, rel=0.01)
    assert found.best_depth == 5


@pytest.mark.parametrize("depth", [3, 4])
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("slowest", ["decode", "infer", "copy", "write"])
def test_from_depth_three_the_rate_is_that_of_the_slowest_stage(slowest, spread, depth):
    stages = {
        name: replace(model, mean_s=(s := 0.010 if name == slowest else 0.005), spread_s=spread * s)
        for name, model in GPU.items()
    }
    found = simulate(stages, depth=depth, batches=400, seed=1)
    alone_s = mean(_costs(stages[slowest], 400, _rng(1, slowest)))
    efficiency = found.throughput_samples_per_s * alone_s
    assert 0.95 <= efficiency <= 1
    assert found.bottleneck == slowest


def _rng(seed: int, name: str) -> random.Random:
    """The generator of the simulation's stage ``name``."""
    return random.Random(f"{seed} {name}")


def test_more_lanes_of_a_stage_raise_its_bound_and_no_other():
    stages = {
        "decode": StageModel(0.060, role=Role.IN, lanes=2),
        "infer": StageModel(0.010, role=Role.COMPUTE),
        "finish": StageModel(0.001, role=Role.FINISH),
    }
    rates = {}
    for lanes in (2, 4, 8):
        stages["decode"] = replace(stages["decode"], lanes=lanes)
        found = simulate(stages, depth=2, batches=1000)
        rates[lanes] = found.throughput_samples_per_s
        assert found.bottleneck == ("decode" if lanes < 6 else "infer")
    assert rates[2] == pytest.approx(2 / 0.060, rel=0.01)
    assert rates[4] == pytest.approx(4 / 0.060, rel=0.01)
    assert rates[8] == pytest.approx(1 / 0.010, rel=0.01)


def test_stages_of_one_role_take_turns_as_on_a_cpu():
    stages = {
        "decode": StageModel(0.02, role=Role.IN, lanes=2),
        "infer": StageModel(0.05, role=Role.IN, lanes=2),
        "write": StageModel(0.01),
    }
    found = simulate(stages, depth=2, batches=1000, batch_size=8)
    assert found.throughput_samples_per_s == pytest.approx(8 * 2 / 0.07, rel=0.01)
    assert (found.bottleneck, found.best_depth) == ("infer", 2)


@settings(max_examples=40, deadline=None)
@given(
    times=st.lists(st.floats(0.0005, 0.02), min_size=5, max_size=5),
    spread=st.floats(0, 1.5),
    lanes=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    sink=st.floats(0, 0.02),
    depth=st.integers(1, 5),
)
def test_no_run_beats_its_bounds_nor_gets_stuck(times, spread, lanes, sink, depth):
    stages = {
        role.value: StageModel(s, spread * s, role, count) for role, s, count in zip(Role, times, lanes, strict=True)
    }
    stages["sink"] = StageModel(sink, spread * sink)
    batches = 25
    found = simulate(stages, depth=depth, batches=batches)
    total_s = batches / found.throughput_samples_per_s
    costs = {name: _costs(model, batches, _rng(0, name)) for name, model in stages.items()}
    assert total_s <= sum(map(sum, costs.values())) * 1.0001
    for name, model in stages.items():
        assert total_s >= sum(costs[name]) / model.lanes * 0.9999
    assert all(-1e-4 <= share <= 1 for share in found.idle_share.values())
    assert 1 <= found.best_depth <= 8


def test_spreads_are_those_of_the_model():
    costs = _costs(StageModel(0.010, 0.004, Role.IN), 20_000, _rng(5, "x"))
    assert mean(costs) == pytest.approx(0.010, rel=0.02)
    assert pstdev(costs) == pytest.approx(0.004, rel=0.05)
    assert min(costs) > 0


def test_the_same_seed_gives_the_same_numbers():
    stages = {name: replace(model, spread_s=model.mean_s / 2) for name, model in GPU.items()}
    assert simulate(stages, depth=2, seed=3) == simulate(stages, depth=2, seed=3)
    assert simulate(stages, depth=2, seed=3) != simulate(stages, depth=2, seed=4)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_it_tells_the_time_that_the_scheduler_really_takes(depth):
    """Threads that sleep: a busy machine makes them late, never early, so the best of a few runs counts."""
    stages = {name: replace(model, mean_s=4 * model.mean_s) for name, model in GPU.items()}
    batches = 8
    predicted_s = batches / simulate(stages, depth=depth, batches=batches).throughput_samples_per_s
    measured_s = min(_slept_s(stages, depth, batches) for _ in range(3))
    assert predicted_s <= measured_s * 1.01
    assert measured_s <= predicted_s * 1.25


def _slept_s(stages: dict[str, StageModel], depth: int, batches: int) -> float:
    streams = {role: HostStream(role.value) for role in (Role.IN, Role.COMPUTE, Role.OUT)}
    steps = [
        Stage(name, model.role, lambda value, _, s=model.mean_s: time.sleep(s))
        for name, model in stages.items()
        if model.role is not None
    ]
    scheduler = Scheduler([Lane(streams, steps)], depth=depth)
    started = time.perf_counter()
    for _ in scheduler.run(range(batches)):
        time.sleep(stages["write"].mean_s)
    elapsed_s = time.perf_counter() - started
    scheduler.close()
    return elapsed_s


@pytest.mark.parametrize(
    ("stages", "depth", "message"),
    [
        (GPU, 0, "depth >= 1"),
        ({"write": StageModel(1.0)}, 1, "Give one a role"),
        ({"decode": StageModel(-1.0, role=Role.IN)}, 1, "'decode' has .*mean_s=-1.0"),
        ({"decode": StageModel(0.1, 11.0, role=Role.IN)}, 1, "spread_s up to 100 x"),
        ({"decode": StageModel(1.0, role=Role.IN, lanes=0)}, 1, "lanes >= 1"),
        ({"write": StageModel(1.0, lanes=2), "decode": StageModel(1.0, role=Role.IN)}, 1, "role sink.* have 1"),
        ({"a": StageModel(1.0, role=Role.IN), "b": StageModel(1.0, role=Role.IN, lanes=2)}, 1, "'b' has 2 lanes"),
        ({"decode": StageModel(0.0, role=Role.IN)}, 1, "No stage takes any time"),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(stages, depth, message):
    with pytest.raises(UsageError, match=message):
        simulate(stages, depth=depth)
