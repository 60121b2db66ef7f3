"""The scheduler on a device that finishes nothing before somebody waits for it, in thousands of seeded orders."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from fakes import POISON, FakeBuffer, FakeDevice, FakeStream, FakeTicketQueue
from vdali.engine.errors import DeviceError
from vdali.engine.scheduler import Scheduler
from vdali.engine.slots import BufferSpec, Lease, allocate_slots
from vdali.engine.stages import Lane, Role, Stage

HOST_ROLES = (Role.READ, Role.FINISH)
STAGES = ("read", "decode", "infer", "copy", "finish")
SPECS = {name: BufferSpec((4,), "u1", pinned=name == "host") for name in ("pixels", "outputs", "host")}


class StageFailed(Exception):
    pass


@dataclass
class Case:
    """What one schedule is made of; samples in ``bad`` end as failures at the stage named with them."""

    lanes: int = 1
    depth: int = 2
    slots: int = 1
    batches: list[list[int]] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    faults: dict[tuple[int, str], bool] = field(default_factory=dict)
    shares_compute: bool = False
    marks_early: bool = False
    max_ahead: int = 8
    stops_after: int | None = None
    source_ends_at: int | None = None
    breaks_at: tuple[int, str] | None = None
    interrupt_after: int | None = None


@dataclass
class Value:
    number: int
    samples: list[int]
    failures: list[int] = field(default_factory=list)


class LaneOfStages:
    """A GPU's lane: its stages check that what they find in a buffer is their batch's, and poison what they free."""

    def __init__(self, device: FakeDevice, case: Case, streams: dict[Role, FakeStream]) -> None:
        self.device = device
        self.case = case
        self.streams = streams
        self.lane = Lane(
            streams,
            (
                Stage("read", Role.READ, self.guarded("read", self.read)),
                Stage("decode", Role.IN, self.guarded("decode", self.decode), takes=("pixels",)),
                Stage("infer", Role.COMPUTE, self.guarded("infer", self.infer), takes=("outputs",), frees=("pixels",)),
                Stage("copy", Role.OUT, self.guarded("copy", self.copy), takes=("host",), frees=("outputs",)),
                Stage("finish", Role.FINISH, self.guarded("finish", self.finish), frees=("host",)),
            ),
            allocate_slots(device, SPECS, case.slots),
        )

    def guarded(self, name, work):
        """``work`` with the fault of the case before or after what it starts."""

        def run(value, lease: Lease):
            number = value[0] if name == "read" else value.number
            fault = self.case.faults.get((number, name))
            if self.case.breaks_at == (number, name):
                self.device.is_broken = True
            if fault is False:
                raise StageFailed(number)
            result = work(value, lease)
            if fault is True:
                raise StageFailed(number)
            return result

        return run

    def read(self, value, lease: Lease) -> Value:
        number, samples = value
        read = Value(number, list(samples))
        self.lose(read, "read")
        return read

    def decode(self, value: Value, lease: Lease) -> Value:
        """A lost batch is decoded again without its bad samples, into the same buffer."""
        pixels = lease.buffers["pixels"]
        self.write(pixels, Role.IN, (value.number, *value.samples))
        if self.lose(value, "decode"):
            self.write(pixels, Role.IN, (value.number, *value.samples))
        return value

    def infer(self, value: Value, lease: Lease) -> Value:
        """A batch that the engine refuses is inferred again without its bad samples."""
        pixels, outputs = lease.buffers["pixels"], lease.buffers["outputs"]
        found = (value.number, *value.samples)
        self.expect(pixels, Role.COMPUTE, found)
        if self.lose(value, "infer"):
            self.expect(pixels, Role.COMPUTE, found)
        self.write(pixels, Role.COMPUTE, POISON)
        event = lease.freed.get("pixels")
        if self.case.marks_early and event is not None:
            self.streams[Role.COMPUTE].record_now(event)
            event.mark()
        self.write(outputs, Role.COMPUTE, (value.number, *value.samples))
        return value

    def copy(self, value: Value, lease: Lease) -> Value:
        outputs = lease.buffers["outputs"]
        self.device.copy(lease.buffers["host"], outputs, stream=self.streams[Role.OUT])
        self.write(outputs, Role.OUT, POISON)
        return value

    def finish(self, value: Value, lease: Lease) -> Value:
        host = lease.buffers["host"]
        self.device.touch(reads=(host,))
        self.compare(host, (value.number, *value.samples))
        self.device.touch(writes=(host,))
        host.content = POISON
        return value

    def lose(self, value: Value, stage: str) -> bool:
        lost = [sample for sample in value.samples if self.case.bad.get(sample) == stage]
        value.failures += lost
        value.samples = [sample for sample in value.samples if sample not in lost]
        return bool(lost)

    def write(self, buffer: FakeBuffer, role: Role, content: object) -> None:
        def work() -> None:
            buffer.content = content

        self.device.launch(work, stream=self.streams[role], writes=(buffer,))

    def expect(self, buffer: FakeBuffer, role: Role, content: object) -> None:
        self.device.launch(lambda: self.compare(buffer, content), stream=self.streams[role], reads=(buffer,))

    def compare(self, buffer: FakeBuffer, content: object) -> None:
        if buffer.content != content:
            self.device.violations.append(f"found {buffer.content}, expected {content}")


def streams_of(device: FakeDevice) -> dict[Role, FakeStream]:
    return {role: device.new_stream(role.value, is_asynchronous=role not in HOST_ROLES) for role in Role}


class Run:
    """One scheduler on one fake device, and what came of it."""

    def __init__(self, case: Case, device: FakeDevice) -> None:
        self.case = case
        self.device = device
        lanes = []
        for _ in range(case.lanes):
            streams = streams_of(device)
            if case.shares_compute and lanes:
                streams[Role.COMPUTE] = lanes[0].streams[Role.COMPUTE]
            lanes.append(LaneOfStages(device, case, streams).lane)
        self.finished = FakeTicketQueue(device)
        self.scheduler = Scheduler(lanes, depth=case.depth, max_ahead=case.max_ahead, finished=self.finished)
        self.taken = 0
        self.results: list[Value] = []
        self.error: BaseException | None = None

    def source(self) -> Iterator[tuple[int, list[int]]]:
        in_flight = self.case.depth * self.case.lanes
        for number, samples in enumerate(self.case.batches):
            if number == self.case.source_ends_at:
                raise OSError(number)
            self.taken += 1
            assert self.taken - self.finished.received <= in_flight + 1
            assert self.taken - len(self.results) <= self.case.max_ahead + 1
            yield number, samples

    def go(self) -> None:
        self.device.interrupt_after = self.case.interrupt_after
        results = self.scheduler.run(self.source())
        try:
            for value in results:
                self.results.append(value)
                if len(self.results) == self.case.stops_after:
                    break
        except (StageFailed, DeviceError, OSError, KeyboardInterrupt) as error:
            self.error = error
        self.device.interrupt_after = None
        results.close()

    def check(self) -> None:
        assert self.device.violations == []
        assert [value.number for value in self.results] == list(range(len(self.results)))
        for value in self.results:
            expected = self.case.batches[value.number]
            assert sorted(value.samples + value.failures) == sorted(expected)
            assert value.failures == sorted(
                (s for s in expected if s in self.case.bad), key=lambda s: (STAGES.index(self.case.bad[s]), s)
            )
        self.check_end()

    def check_end(self) -> None:
        case, ended = self.case, len(self.results)
        first_fault = min((number for number, _ in case.faults), default=len(case.batches))
        if self.error is None:
            assert ended == min(len(case.batches), len(case.batches) if case.stops_after is None else case.stops_after)
        elif isinstance(self.error, StageFailed):
            assert ended == first_fault == self.error.args[0]
        assert ended <= first_fault
        if isinstance(self.error, DeviceError):
            assert self.device.is_broken

    def check_again(self) -> None:
        """The same scheduler runs a few more batches as if nothing had been, unless the device is gone."""
        if not self.device.is_broken:
            self.case.faults.clear()
            again = list(self.scheduler.run((number, [number]) for number in range(2)))
            assert [value.number for value in again] == [0, 1]
        self.scheduler.close()
        assert self.device.violations == []
        assert self.device.live == 0 or self.device.is_broken


def random_case(rng: random.Random) -> Case:
    depth = rng.randint(1, 4)
    count = rng.randint(0, 6)
    batches = [[10 * number + k for k in range(rng.randint(1, 3))] for number in range(count)]
    case = Case(
        lanes=rng.randint(1, 2),
        depth=depth,
        slots=rng.randint(1, depth),
        batches=batches,
        shares_compute=rng.random() < 0.3,
        marks_early=rng.random() < 0.5,
        max_ahead=rng.randint(1, 10),
    )
    for batch in batches:
        for sample in batch:
            if rng.random() < 0.1:
                case.bad[sample] = rng.choice(STAGES[:3])
    trouble = rng.random()
    if trouble < 0.25 and count:
        case.faults[rng.randrange(count), rng.choice(STAGES)] = rng.random() < 0.5
    elif trouble < 0.4:
        case.stops_after = rng.randint(1, 4)
    elif trouble < 0.45 and count:
        case.source_ends_at = rng.randrange(count)
    elif trouble < 0.55 and count:
        case.breaks_at = rng.randrange(count), rng.choice(STAGES)
    elif trouble < 0.75:
        case.interrupt_after = rng.randrange(120)
    return case


def run_case(seed: int) -> Run:
    rng = random.Random(seed)
    device = FakeDevice(seed, laziness=rng.choice((1.0, 0.9, 0.3)))
    run = Run(random_case(rng), device)
    run.go()
    return run


def test_in_ten_thousand_orders_each_sample_ends_once_in_order_and_no_buffer_is_used_by_two():
    ended = {"finished": 0}
    for seed in range(10_000):
        try:
            run = run_case(seed)
            run.check()
            run.check_again()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        kind = type(run.error).__name__ if run.error else "finished"
        ended[kind] = ended.get(kind, 0) + 1
    assert {"finished", "StageFailed", "OSError", "DeviceError", "KeyboardInterrupt"} == ended.keys()
    assert min(ended.values()) > 100


@pytest.mark.parametrize(
    "forgotten",
    [
        ("in", "read"),
        ("compute", "in"),
        ("out", "compute"),
        ("finish", "out"),
        ("in", "compute"),
        ("compute", "out"),
        ("out", "finish"),
    ],
    ids=" behind ".join,
)
def test_a_single_kind_of_wait_left_out_is_seen(forgotten):
    violations: list[str] = []
    for seed in range(30):
        device = FakeDevice(seed, forgets=forgotten)
        run = Run(Case(depth=3, slots=1, batches=[[10 * n, 10 * n + 1] for n in range(6)]), device)
        with suppress(AttributeError, TypeError):  # a stage that runs before the one whose value it takes
            run.go()
            run.scheduler.close()
            violations += device.violations
            continue
        violations.append("ran before the stage before it")
    assert violations


def started_in_order(case: Case) -> list[str]:
    """Names of the stages in the order in which a lazy device's threads come to them, with the batch's number."""
    started: list[str] = []
    run = Run(case, FakeDevice(3))
    for lane in run.scheduler._lanes:
        for stage in lane.stages:

            def noted(value, lease, work=stage.work, name=stage.name):
                result = work(value, lease)
                started.append(f"{name} {result.number}")
                return result

            stage.work = noted
    run.go()
    run.check()
    run.scheduler.close()
    return started


def test_with_one_slot_the_next_decode_begins_before_the_outputs_are_ready():
    started = started_in_order(Case(depth=3, slots=1, batches=[[n] for n in range(4)], marks_early=True))
    assert started.index("infer 0") < started.index("decode 1") < started.index("finish 0")


def test_with_two_slots_the_next_decode_begins_before_the_input_is_read():
    batches = [[n] for n in range(4)]
    one = started_in_order(Case(depth=3, slots=1, batches=batches))
    two = started_in_order(Case(depth=3, slots=2, batches=batches))
    assert one.index("infer 0") < one.index("decode 1")
    assert two.index("decode 1") < two.index("infer 0")
