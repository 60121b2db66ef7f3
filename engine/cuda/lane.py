"""The lane of a GPU: read -> decode -> infer -> copy -> finish, each on a stream of its own.

The host reads, looks at headers and decodes what the GPU cannot; the GPU decodes into the slot's pixels, infers into
the slot's outputs and copies those to pinned memory, with no wait of the host in between; the host makes rows. Nothing
here names CUDA or a runtime: the engine brings its device, and the decoder one that delivers there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.interface import Context, DeviceEngine
from ..batch import Decoded, Encoded, Failure, Outcome, Rows
from ..decoders.device_interface import DeviceBatch, DeviceDecoder
from ..device import Buffer, Device, HostDevice, Stream
from ..errors import InferError
from ..pipeline import Work, joined, outcome_of, read
from ..slots import BufferSpec, Lease, allocate_slots
from ..spec import Task
from ..stages import Lane, Role, Stage
from ..tasks import rows_from_outputs

READ_PIECES = 16
"""Parts of a batch that are read side by side: where files are remote, reading is waiting. More parts would cost more
than local files take to read: a task is some 20 microseconds."""

ON_THE_HOST = (Role.READ, Role.FINISH)
_OUT, _HOST, _ALONE = "out:", "host:", "alone:"


@dataclass(slots=True)
class _Prepared:
    """A batch that the host is done with: what the decoder made of it, and samples that are lost already."""

    decoded: Any
    failures: list[Failure]


@dataclass(slots=True)
class _Running:
    """A batch on the device: row i of the outputs belongs to ``batch.decoded[i]``, unless ``lost`` has an i."""

    batch: DeviceBatch
    lost: dict[int, InferError] = field(default_factory=dict)


def device_lane(
    engine: DeviceEngine,
    decoder: DeviceDecoder,
    pool: ThreadPoolExecutor,
    *,
    compute: Stream,
    name: str,
    batch_size: int,
    slots: int,
) -> Lane:
    """Lane of ``engine`` with ``slots`` sets of buffers for ``batch_size`` rows; ``pool`` helps the host.

    ``compute`` is the stream of all inference: lanes share it, since some runtimes keep weights for each. Raises
    DeviceError when the GPU has not enough memory.
    """
    specs = _specs(engine, batch_size)
    with ExitStack() as held:
        streams = _new_streams(engine.device, name, held) | {Role.COMPUTE: compute}
        allocated = allocate_slots(engine.device, specs, slots)
        for slot in allocated:
            held.callback(slot.close)
        contexts = []
        for _ in range(slots):
            contexts.append(engine.new_context(streams[Role.COMPUTE]))
            held.callback(contexts[-1].close)
        held.pop_all()
    work = _LaneWork(engine, decoder, pool, streams, contexts)
    closes = (work.let_go, *(context.close for context in contexts), decoder.close, pool.shutdown)
    return Lane(streams, _stages(work, specs), allocated, closes)


def _stages(work: _LaneWork, buffers: Iterable[str]) -> tuple[Stage, ...]:
    """Each buffer goes its own way: taken by the stage that writes it first, freed by the one that reads it last."""
    outputs, on_host, alone = (
        tuple(name for name in buffers if name.startswith(prefix)) for prefix in (_OUT, _HOST, _ALONE)
    )
    return (
        Stage("read", Role.READ, work.read, takes=("staged",)),
        Stage("decode", Role.IN, work.decode, takes=("pixels",), frees=("staged",)),
        Stage("infer", Role.COMPUTE, work.infer, takes=(*outputs, *alone), frees=("pixels", *alone)),
        Stage("copy", Role.OUT, work.copy, takes=on_host, frees=outputs),
        Stage("finish", Role.FINISH, work.finish, frees=on_host),
    )


def _new_streams(device: Device, name: str, held: ExitStack) -> dict[Role, Stream]:
    streams: dict[Role, Stream] = {}
    for role in (*ON_THE_HOST, Role.IN, Role.OUT):
        streams[role] = (HostDevice() if role in ON_THE_HOST else device).new_stream(f"{name}-{role}")
        held.callback(streams[role].close)
    return streams


def _specs(engine: DeviceEngine, batch_size: int) -> dict[str, BufferSpec]:
    """Buffers of a slot. ``alone`` ones are for pictures that are tried one by one: runtimes want aligned addresses,
    which rows inside a batch have not, and room for the smallest batch that a plan takes.
    """
    height, width = engine.spec.preprocess.size
    pixels = BufferSpec((batch_size, height, width, 3), np.uint8)
    specs = {"staged": replace(pixels, pinned=True), "pixels": pixels, f"{_ALONE}pixels": pixels}
    for name, spec in engine.output_specs(batch_size).items():
        specs[_OUT + name] = spec
        specs[_HOST + name] = replace(spec, pinned=True)
        specs[f"{_ALONE}{_OUT}{name}"] = spec
    return specs


class _LaneWork:
    """What the stages of one lane do."""

    def __init__(
        self,
        engine: DeviceEngine,
        decoder: DeviceDecoder,
        pool: ThreadPoolExecutor,
        streams: Mapping[Role, Stream],
        contexts: Sequence[Context],
    ) -> None:
        self._engine = engine
        self._decoder = decoder
        self._pool = pool
        self._streams = streams
        self._contexts = contexts
        self._in_flight: deque[DeviceBatch] = deque()

    def let_go(self) -> None:
        """Give up what batches hold that never finished: an error may keep them alive longer than the GPU's streams."""
        while self._in_flight:
            self._in_flight.popleft().held.clear()

    def read(self, work: Work, lease: Lease) -> _Prepared:
        encoded: list[Encoded] = []
        failures: list[Failure] = []
        size = -(-len(work) // READ_PIECES)
        pieces = [work[start : start + size] for start in range(0, len(work), size)]
        for found, lost in self._pool.map(read, pieces):
            encoded += found
            failures += lost
        return _Prepared(self._decoder.prepare(encoded, lease.buffers["staged"]), failures)

    def decode(self, prepared: _Prepared, lease: Lease) -> DeviceBatch:
        buffers = lease.buffers
        batch = self._decoder.start(
            prepared.decoded, buffers["staged"], buffers["pixels"], stream=self._streams[Role.IN]
        )
        batch.failures.extend(prepared.failures)
        self._in_flight.append(batch)
        return batch

    def infer(self, batch: DeviceBatch, lease: Lease) -> _Running:
        if not len(batch):
            return _Running(batch)
        try:
            self._contexts[lease.slot].enqueue(
                lease.buffers["pixels"],
                _named(lease.buffers, _OUT),
                len(batch),
                stream=self._streams[Role.COMPUTE],
                consumed=lease.freed.get("pixels"),
            )
        except InferError as error:
            return _Running(batch, {0: error} if len(batch) == 1 else self._one_by_one(len(batch), lease))
        return _Running(batch)

    def _one_by_one(self, rows: int, lease: Lease) -> dict[int, InferError]:
        """Each row of a batch that the engine refused, on its own; what it says of those that it refuses again."""
        device, stream, buffers = self._engine.device, self._streams[Role.COMPUTE], lease.buffers
        pixels, outputs = buffers[f"{_ALONE}pixels"], _named(buffers, _ALONE + _OUT)
        lost: dict[int, InferError] = {}
        for row in range(rows):
            device.copy(pixels[:1], buffers["pixels"][row : row + 1], stream=stream)
            try:
                self._contexts[lease.slot].enqueue(pixels, outputs, 1, stream=stream)
            except InferError as error:
                lost[row] = error
                continue
            for name, output in outputs.items():
                device.copy(buffers[_OUT + name][row : row + 1], output[:1], stream=stream)
        return lost

    def copy(self, running: _Running, lease: Lease) -> _Running:
        rows = len(running.batch)
        if rows:
            for name, output in _named(lease.buffers, _OUT).items():
                target = lease.buffers[_HOST + name]
                self._engine.device.copy(target[:rows], output[:rows], stream=self._streams[Role.OUT])
        return running

    def finish(self, running: _Running, lease: Lease) -> Outcome:
        batch = running.batch
        while self._in_flight:
            done = self._in_flight.popleft()  # an earlier one was ended half-way, and was ahead on every stream
            done.held.clear()
            if done is batch:
                break
        lost = [Failure.from_error(batch.decoded[row].id, error) for row, error in running.lost.items()]
        kept = [row for row in range(len(batch)) if row not in running.lost]
        outcome = Outcome(Rows((), {}), [])
        if kept:
            # a list of rows would copy: only where some are missing
            chosen: Any = kept if running.lost else slice(len(batch))
            outputs = {name: host[chosen] for name, host in _named(lease.buffers, _HOST).items()}
            outcome = self._rows([batch.decoded[row] for row in kept], outputs)
        return outcome_of(batch.decoded, outcome, [*batch.failures, *lost])

    def _rows(self, decoded: Sequence[Decoded], outputs: Mapping[str, NDArray[Any]]) -> Outcome:
        """Rows of a batch. Masks become PNG files at the source's size, which is costly: several at a time."""
        spec = self._engine.spec
        if spec.task is not Task.SEGMENT:
            return rows_from_outputs(spec, decoded, outputs)

        def rows_of(row: int) -> Outcome:
            alone = {name: output[row : row + 1] for name, output in outputs.items()}
            return rows_from_outputs(spec, decoded[row : row + 1], alone)

        parts = list(self._pool.map(rows_of, range(len(decoded))))
        failures = [failure for part in parts for failure in part.failures]
        return Outcome(joined([part.rows for part in parts if len(part.rows)]), failures)


def _named(buffers: Mapping[str, Buffer], prefix: str) -> dict[str, Buffer]:
    """Buffers whose name begins with ``prefix``, by the rest of it."""
    return {name.removeprefix(prefix): buffer for name, buffer in buffers.items() if name.startswith(prefix)}
