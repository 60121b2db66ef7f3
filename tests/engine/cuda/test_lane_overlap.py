"""How well the lane of a GPU overlaps: its own stages, buffers and slots under the real scheduler, in virtual time."""

from __future__ import annotations

import random
from contextlib import closing

import pytest
from fake_gpu import FakeDeviceEngine, colour_spec, mean_colour
from models import plain_preprocess
from vdali.engine.cuda.lanes import new_device_lanes
from vdali.engine.decoders.interface import DecodeOptions
from vdali.engine.decoders.make import DecoderName
from vdali.engine.lanes import DEVICE_ROLES, DEVICE_SLOTS
from vdali.engine.scheduler import Scheduler
from vdali.engine.simulation import VirtualStream, VirtualTicketQueue, VirtualTime
from vdali.engine.stages import Lane, Role, Stage

PLAIN = plain_preprocess((8, 8))
STAGES = ("read", "decode", "infer", "copy", "finish")
BATCHES = 300


@pytest.fixture
def lane(cuda, runtime):
    """The production lane, whose stages and slots are looked at; ``slots`` of it are asked for."""
    made: list[Lane] = []

    def new(slots: int) -> Lane:
        engine = FakeDeviceEngine(cuda, runtime, colour_spec(PLAIN), mean_colour)
        (lane,), _ = new_device_lanes(
            engine, PLAIN, DecoderName.TURBO, DecodeOptions(), count=1, batch_size=2, slots=slots, threads=1
        )
        made.append(lane)
        return lane

    yield new
    for lane in made:
        Scheduler([lane]).close()


def efficiency(lane: Lane, mean_s: dict[str, float], *, spread: float, depth: int) -> float:
    """Share of the slowest stage's time in the time of a run whose stages take ``mean_s``, give or take a share."""
    rng = random.Random(3)
    costs = {
        name: [mean * rng.uniform(1 - spread, 1 + spread) for _ in range(BATCHES)] for name, mean in mean_s.items()
    }
    time = VirtualTime()
    streams = {role: VirtualStream(time, role.value) for role in Role}

    def spending(stage: Stage) -> Stage:
        def work(number: int, lease: object) -> int:
            streams[stage.role].spend(costs[stage.name][number])
            return number

        return Stage(stage.name, stage.role, work, stage.takes, stage.frees)

    played = Lane(streams, [spending(stage) for stage in lane.stages], lane.slots)
    scheduler = Scheduler([played], depth=depth, finished=VirtualTicketQueue(time))
    with closing(scheduler.run(range(BATCHES))) as results:
        assert list(results) == list(range(BATCHES))
    for slot in lane.slots:
        slot.freed.clear()  # events of virtual time
    return max(sum(spent) for spent in costs.values()) / time.now_s


@pytest.mark.parametrize("spread", [0.0, 0.2])
@pytest.mark.parametrize("slowest", STAGES)
def test_with_the_default_slots_and_depth_the_slowest_stage_never_waits(lane, slowest, spread):
    mean_s = dict.fromkeys(STAGES, 0.6) | {slowest: 1.0}
    assert efficiency(lane(DEVICE_SLOTS), mean_s, spread=spread, depth=DEVICE_ROLES) >= 0.95


@pytest.mark.parametrize("depth", [3, 4])
def test_from_depth_three_a_gpu_that_is_the_slowest_is_kept_busy(lane, depth):
    mean_s = {"read": 0.3, "decode": 0.7, "infer": 1.0, "copy": 0.1, "finish": 0.2}
    assert efficiency(lane(DEVICE_SLOTS), mean_s, spread=0.2, depth=depth) >= 0.95


def test_five_stages_as_long_as_each_other_need_all_of_it(lane):
    """Where fewer slots or batches in flight would do, the defaults would waste memory."""
    mean_s = dict.fromkeys(STAGES, 1.0)
    default = efficiency(lane(DEVICE_SLOTS), mean_s, spread=0.1, depth=DEVICE_ROLES)
    assert default >= 0.9
    assert efficiency(lane(1), mean_s, spread=0.1, depth=DEVICE_ROLES) < default - 0.2
    assert efficiency(lane(DEVICE_SLOTS), mean_s, spread=0.1, depth=2) < default - 0.3
    deeper = efficiency(lane(DEVICE_SLOTS), mean_s, spread=0.1, depth=DEVICE_ROLES + 3)
    assert deeper <= default + 0.05
