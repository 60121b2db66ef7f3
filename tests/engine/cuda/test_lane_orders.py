"""The GPU lane's own stages on a device that finishes nothing unasked: in no order is an access loose.

The code of the stages is the production lane's; only what would be CUDA, a decoder or a runtime is played. The device
keeps vector clocks, so a wait that is missing shows whether or not it went wrong this time.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from fakes import POISON, FakeBuffer, FakeDevice, FakeEvent, FakeStream, FakeTicketQueue
from models import plain_preprocess
from vdali.engine.batch import Decoded, Encoded, Outcome, Rows, Sample
from vdali.engine.cuda.lane import ON_THE_HOST, _LaneWork, _specs, _stages
from vdali.engine.decoders.device_interface import DeviceBatch
from vdali.engine.errors import InferError
from vdali.engine.scheduler import Scheduler
from vdali.engine.slots import BufferSpec, allocate_slots
from vdali.engine.spec import ModelSpec, Task
from vdali.engine.stages import Lane, Role

ORDERS = 800
SPEC = ModelSpec("played", Task.EMBED, plain_preprocess((4, 4)), raw_output="embedding", weights="none")


class RowsBuffer(FakeBuffer):
    """Its rows are itself: an access to some is one to all."""

    def __getitem__(self, rows: object) -> RowsBuffer:
        return self


class RowsDevice(FakeDevice):
    def allocate(self, shape: tuple[int, ...], dtype: object) -> RowsBuffer:
        self.live += 1
        return RowsBuffer()

    allocate_pinned = allocate


@dataclass
class Case:
    slots: int = 2
    depth: int = 3
    lanes: int = 1
    batches: int = 6
    refused: frozenset[int] = frozenset()
    marks_early: bool = True
    stops_after: int | None = None


class PlayedDecoder:
    """Leaves the batch's ids in the staged memory, on the host, and from there in the pixels, on the device."""

    name = "played"

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def prepare(self, samples: Sequence[Encoded], staged: RowsBuffer) -> list[str]:
        ids = [sample.id for sample in samples]
        self.device.touch(writes=(staged,))
        staged.content = ids
        return ids

    def start(self, prepared: list[str], staged: RowsBuffer, pixels: RowsBuffer, *, stream: FakeStream) -> DeviceBatch:
        def work() -> None:
            pixels.content, staged.content = staged.content, POISON

        self.device.launch(work, stream=stream, reads=(staged,), writes=(pixels, staged))
        return DeviceBatch([Decoded(sample_id, 4, 4, self.name) for sample_id in prepared], [])

    def close(self) -> None: ...


@dataclass
class PlayedEngine:
    """Gives what it finds in the pixels, which it poisons; refuses whole batches that begin with certain numbers."""

    device: FakeDevice
    case: Case
    spec: ModelSpec = SPEC
    max_batch: int = 3

    def output_specs(self, rows: int) -> dict[str, BufferSpec]:
        return {"embedding": BufferSpec((rows, 3), np.float32)}

    def new_context(self, stream: FakeStream) -> PlayedEngine:
        return self

    def enqueue(
        self,
        pixels: RowsBuffer,
        outputs: Mapping[str, RowsBuffer],
        rows: int,
        *,
        stream: FakeStream,
        consumed: FakeEvent | None = None,
    ) -> None:
        if rows > 1 and rows in self.case.refused:
            raise InferError("refused", "too many")
        found: list[object] = []

        def read() -> None:
            found.append(pixels.content)
            pixels.content = POISON if rows > 1 else pixels.content  # a single picture's are copied from the batch's

        def write() -> None:
            outputs["embedding"].content = found[0]

        self.device.launch(read, stream=stream, reads=(pixels,), writes=(pixels,))
        if consumed is not None and self.case.marks_early:
            stream.record_now(consumed)
            consumed.mark()
        self.device.launch(write, stream=stream, writes=(outputs["embedding"],))

    def close(self) -> None: ...


class PlayedWork(_LaneWork):
    """The lane's stages, whose rows are the ids that came back."""

    def _rows(self, decoded: Sequence[Decoded], outputs: Mapping[str, Any]) -> Outcome:
        host, device = outputs["embedding"], self._engine.device
        device.touch(reads=(host,), writes=(host,))
        ids = [sample.id for sample in decoded]
        if host.content != ids:
            device.violations.append(f"found {host.content}, expected {ids}")
        host.content = POISON
        return Outcome(Rows(ids, {}), [])


@dataclass
class Run:
    case: Case
    device: FakeDevice
    pool: ThreadPoolExecutor
    ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        lanes, compute = [], self.device.new_stream("compute")
        for _ in range(self.case.lanes):
            streams = {
                role: self.device.new_stream(role.value, is_asynchronous=role not in ON_THE_HOST)
                for role in Role
                if role is not Role.COMPUTE
            } | {Role.COMPUTE: compute}
            engine = PlayedEngine(self.device, self.case)
            work = PlayedWork(engine, PlayedDecoder(self.device), self.pool, streams, [engine] * self.case.slots)
            specs = _specs(engine, engine.max_batch)
            slots = allocate_slots(self.device, specs, self.case.slots)
            lanes.append(Lane(streams, _stages(work, specs), slots, (work.let_go,)))
        finished = FakeTicketQueue(self.device)
        self.scheduler = Scheduler(lanes, depth=self.case.depth, finished=finished)

    def go(self) -> None:
        """Batches of one to three samples; their ids come back in their order."""
        works = [
            [Sample(f"{number}-{k}", lambda: b"") for k in range(1 + number % 3)] for number in range(self.case.batches)
        ]
        results = self.scheduler.run(works)
        for ended, outcome in enumerate(results):
            self.ids += outcome.rows.ids
            if ended + 1 == self.case.stops_after:
                break
        results.close()
        expected = [sample.id for work in works[: self.case.stops_after] for sample in work]
        if self.ids != expected:
            self.device.violations.append(f"ids {self.ids}, expected {expected}")
        self.scheduler.close()


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def random_case(rng: random.Random) -> Case:
    return Case(
        slots=rng.randint(1, 3),
        depth=rng.randint(1, 5),
        lanes=rng.randint(1, 2),
        batches=rng.randint(0, 7),
        refused=frozenset(rows for rows in (2, 3) if rng.random() < 0.3),
        marks_early=rng.random() < 0.6,
        stops_after=rng.choice((None, None, None, 1, 2)),
    )


def test_no_buffer_of_the_lane_is_used_out_of_turn_in_any_order(pool):
    for seed in range(ORDERS):
        rng = random.Random(seed)
        device = RowsDevice(seed, laziness=rng.choice((1.0, 0.9, 0.3)))
        run = Run(random_case(rng), device, pool)
        run.go()
        assert device.violations == [], f"seed {seed}: {run.case}"
        assert device.live == 0


@pytest.mark.parametrize(
    "forgotten",
    [
        ("in", "read"),
        ("read", "in"),
        ("compute", "in"),
        ("in", "compute"),
        ("out", "compute"),
        ("compute", "out"),
        ("finish", "out"),
        ("out", "finish"),
    ],
    ids=" behind ".join,
)
def test_each_wait_between_the_lanes_streams_is_needed(pool, forgotten):
    violations: list[str] = []
    for seed in range(20):
        device = RowsDevice(seed, forgets=forgotten)
        try:
            Run(Case(slots=1, depth=4), device, pool).go()
        except (AssertionError, AttributeError, TypeError) as error:  # stuck, or a stage ran before the one ahead of it
            violations.append(str(error))
        violations += device.violations
    assert violations
