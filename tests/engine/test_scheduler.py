from __future__ import annotations

import random
import threading
import time

import pytest
from vdali.engine.device import HostDevice, HostStream
from vdali.engine.scheduler import Scheduler
from vdali.engine.slots import BufferSpec, Lease, allocate_slots
from vdali.engine.stages import Lane, Role, Stage

DEVICE_ROLES = (Role.IN, Role.COMPUTE, Role.OUT)


def alone(work):
    """A stage's work that uses no buffer."""
    return lambda value, _lease: work(value)


def one_stream_lanes(count: int, *works) -> list[Lane]:
    lanes = []
    for number in range(count):
        stream = HostDevice().new_stream(f"lane-{number}")
        stages = [Stage(f"stage-{i}", Role.IN, alone(work)) for i, work in enumerate(works)]
        lanes.append(Lane(dict.fromkeys(Role, stream), stages))
    return lanes


def pipelined_lane(decode, compute, output) -> Lane:
    streams = {role: HostStream(role.value) for role in DEVICE_ROLES}
    return Lane(
        streams, [Stage(r.value, r, alone(w)) for r, w in zip(DEVICE_ROLES, (decode, compute, output), strict=True)]
    )


@pytest.mark.parametrize(("lanes", "depth"), [(1, 1), (1, 2), (2, 2), (3, 1), (4, 3)])
def test_results_keep_the_order_of_the_input_whatever_each_batch_takes(lanes, depth):
    rng = random.Random(lanes * 10 + depth)

    def work(value):
        time.sleep(rng.random() * 0.002)
        return value * 10

    scheduler = Scheduler(one_stream_lanes(lanes, work, lambda v: v + 1), depth=depth)
    assert list(scheduler.run(range(100))) == [v * 10 + 1 for v in range(100)]
    scheduler.close()


def test_stages_on_streams_of_their_own_still_run_in_turn_for_each_batch():
    trace: list[tuple[str, int]] = []

    def step(name):
        def work(value):
            time.sleep(0.0005)
            trace.append((name, value))
            return value

        return work

    scheduler = Scheduler([pipelined_lane(step("in"), step("compute"), step("out"))], depth=3)
    assert list(scheduler.run(range(20))) == list(range(20))
    scheduler.close()
    for value in range(20):
        places = [trace.index((name, value)) for name in ("in", "compute", "out")]
        assert places == sorted(places)


def test_streams_of_one_lane_overlap_when_depth_allows():
    running, peak, lock = 0, 0, threading.Lock()

    def work(value):
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.003)
        with lock:
            running -= 1
        return value

    scheduler = Scheduler([pipelined_lane(work, work, work)], depth=3)
    list(scheduler.run(range(12)))
    scheduler.close()
    assert peak >= 2


def test_an_error_is_raised_when_its_turn_comes_and_not_before():
    def work(value):
        if value == 5:
            raise ValueError("five")
        if value < 5:
            time.sleep(0.005)
        return value

    scheduler = Scheduler(one_stream_lanes(3, work), depth=2)
    results = scheduler.run(range(50))
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        next(results)
    scheduler.close()


def test_closing_early_leaves_no_work_running_and_the_scheduler_usable():
    running = threading.Event()

    def work(value):
        running.set()
        time.sleep(0.002)
        running.clear()
        return value

    scheduler = Scheduler(one_stream_lanes(2, work), depth=3)
    results = scheduler.run(range(1000))
    assert next(results) == 0
    results.close()
    assert not running.is_set()
    assert list(scheduler.run(range(3))) == [0, 1, 2]
    scheduler.close()


def test_no_more_batches_are_taken_than_max_ahead_allows():
    taken = 0
    yielded = 0
    worst = 0

    def batches():
        nonlocal taken, worst
        for value in range(200):
            taken += 1
            worst = max(worst, taken - yielded)
            yield value

    def work(value):
        time.sleep(0.02 if value == 0 else 0.0001)
        return value

    scheduler = Scheduler(one_stream_lanes(4, work), depth=2, max_ahead=10)
    for _ in scheduler.run(batches()):
        yielded += 1
    scheduler.close()
    assert yielded == 200
    assert worst <= 12


def test_a_slow_batch_does_not_stop_the_other_lanes():
    done_before_slow = 0
    slow_done = threading.Event()

    def work(value):
        nonlocal done_before_slow
        if value == 0:
            time.sleep(0.1)
            slow_done.set()
        elif not slow_done.is_set():
            done_before_slow += 1
        return value

    scheduler = Scheduler(one_stream_lanes(2, work), depth=2, max_ahead=40)
    assert list(scheduler.run(range(60))) == list(range(60))
    scheduler.close()
    assert done_before_slow >= 30


def test_times_are_summed_by_stage_name():
    scheduler = Scheduler(one_stream_lanes(2, lambda v: time.sleep(0.001), lambda v: v), depth=2)
    list(scheduler.run(range(10)))
    times = scheduler.times()
    scheduler.close()
    assert times["stage-0"].calls == 10
    assert times["stage-0"].wall_s >= 0.01
    assert times["stage-0"].cpu_s < times["stage-0"].wall_s


def test_closing_the_scheduler_under_a_run_that_nobody_ended_hangs_neither_then_nor_later():
    scheduler = Scheduler(one_stream_lanes(2, lambda v: v), depth=2)
    results = scheduler.run(range(1000))
    assert next(results) == 0
    scheduler.close()
    results.close()


def test_what_a_lane_brought_is_closed_once_and_while_its_streams_are_there():
    stream = HostDevice().new_stream("lane")
    told: list[bool] = []

    def close() -> None:
        stream.synchronize()  # would wait for ever on a stream that is closed
        told.append(True)

    lane = Lane(dict.fromkeys(Role, stream), (Stage("work", Role.COMPUTE, lambda value, _: value),), closes=(close,))
    scheduler = Scheduler([lane])
    assert list(scheduler.run(range(3))) == [0, 1, 2]
    scheduler.close()
    scheduler.close()
    assert told == [True]


def test_each_batch_is_told_which_slot_it_has():
    stream = HostDevice().new_stream("lane")
    seen: list[tuple[int, int]] = []
    slots = allocate_slots(HostDevice(), {"pixels": BufferSpec((1,), "u1")}, 3)

    def work(value: int, lease: Lease) -> int:
        assert lease.buffers is slots[lease.slot].buffers
        seen.append((value, lease.slot))
        return value

    stages = (Stage("work", Role.COMPUTE, work, takes=("pixels",), frees=("pixels",)),)
    scheduler = Scheduler([Lane(dict.fromkeys(Role, stream), stages, slots)])
    list(scheduler.run(range(7)))
    scheduler.close()
    assert len({slot for _, slot in seen[:3]}) == 3
    assert [slot for _, slot in seen[3:6]] == [slot for _, slot in seen[:3]]
