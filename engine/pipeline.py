"""The data path: source -> decoder -> scheduler -> engine -> sink.

Each sample ends once, as a row or as a failure, and results reach the sink in the order of the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from .backends.interface import Engine
from .batch import Batch, Decoded, Encoded, Failure, Outcome, Rows, Sample
from .decoders.interface import Decoder
from .device import Device
from .errors import InferError, ReadError
from .scheduler import Scheduler
from .sinks.interface import Sink
from .slots import BufferSpec, allocate_slots
from .stages import Lane, Role, Stage
from .tasks import rows_from_outputs

Work = Sequence[Sample | Failure]


def run(
    source: Iterable[Sample | Failure],
    scheduler: Scheduler,
    sink: Sink,
    *,
    batch_size: int,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> None:
    """Send every entry of ``source`` through the lanes and into ``sink``.

    ``on_outcome`` sees each outcome after the sink took it; what it raises ends the run. Whatever ends the
    run, all that reached the sink is committed.
    """
    try:
        # closed here, not by the garbage collector, so that a second Ctrl-C while lanes end their work is raised
        with closing(scheduler.run(batches_of(source, batch_size))) as outcomes:
            for outcome in outcomes:
                sink.write(outcome.rows, outcome.failures)
                if on_outcome is not None:
                    on_outcome(outcome)
    finally:
        sink.commit()


def batches_of(source: Iterable[Sample | Failure], size: int) -> Iterator[Work]:
    """Entries in groups of at most ``size`` samples; failures travel along."""
    group: list[Sample | Failure] = []
    samples = 0
    for entry in source:
        group.append(entry)
        samples += isinstance(entry, Sample)
        if samples == size or len(group) == 8 * size:
            yield group
            group, samples = [], 0
    if group:
        yield group


def cpu_lane(device: Device, number: int, decoder: Decoder, engine: Engine, batch_size: int) -> Lane:
    """Lane that reads, decodes and infers in turn on one stream: its batch stays in the cache."""
    height, width = engine.spec.preprocess.size
    pixels = BufferSpec((batch_size, height, width, 3), np.uint8)
    stream = device.new_stream(f"lane-{number}")
    return Lane(
        streams=dict.fromkeys(Role, stream),
        stages=(
            Stage("read", Role.READ, lambda work, _: read(work)),
            Stage(
                "decode", Role.IN, lambda work, lease: decode(decoder, work, lease.buffers["pixels"]), takes=("pixels",)
            ),
            Stage("infer", Role.COMPUTE, lambda batch, _: infer(engine, batch), frees=("pixels",)),
        ),
        slots=allocate_slots(device, {"pixels": pixels}, 1),
    )


def read(work: Work) -> tuple[list[Encoded], list[Failure]]:
    """Bytes of each sample; those that cannot be read become failures."""
    encoded: list[Encoded] = []
    failures: list[Failure] = []
    for entry in work:
        if isinstance(entry, Failure):
            failures.append(entry)
            continue
        try:
            encoded.append(Encoded(entry.id, entry.read()))
        except ReadError as error:
            failures.append(Failure.from_error(entry.id, error))
    return encoded, failures


def decode(decoder: Decoder, work: tuple[list[Encoded], list[Failure]], buffer: NDArray[np.uint8]) -> Batch:
    """One dense batch in ``buffer``, with every failure so far."""
    encoded, failures = work
    batch = decoder.decode(encoded, buffer)
    batch.failures.extend(failures)
    return batch


def infer(engine: Engine, batch: Batch) -> Outcome:
    """Rows and failures of one batch; when the engine fails on it, its samples are tried one by one."""
    if not batch.decoded:
        return Outcome(Rows((), {}), batch.failures)
    try:
        outcome = _infer(engine, batch)
    except InferError as error:
        outcome = _infer_one_by_one(engine, batch, error)
    return outcome_of(batch.decoded, outcome, batch.failures)


def outcome_of(decoded: Sequence[Decoded], inferred: Outcome, failures: Sequence[Failure]) -> Outcome:
    """All that became of a batch: what was inferred, the failures before that, and who decoded."""
    decoded_by = Counter(sample.decoder for sample in decoded)
    return Outcome(inferred.rows, [*failures, *inferred.failures], decoded_by)


def _infer(engine: Engine, batch: Batch) -> Outcome:
    return rows_from_outputs(engine.spec, batch.decoded, engine.infer(batch.pixels))


def _infer_one_by_one(engine: Engine, batch: Batch, error: InferError) -> Outcome:
    outcomes: list[Outcome] = []
    for i, decoded in enumerate(batch.decoded):
        single = Batch([decoded], batch.pixels[i : i + 1])
        try:
            if len(batch.decoded) == 1:
                raise error
            outcomes.append(_infer(engine, single))
        except InferError as reason:
            outcomes.append(Outcome(Rows((), {}), [Failure.from_error(decoded.id, reason)]))
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    return Outcome(joined([outcome.rows for outcome in outcomes if len(outcome.rows)]), failures)


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, which have the same columns."""
    if not parts:
        return Rows((), {})
    columns = {
        name: [value for part in parts for value in part.columns[name]]
        if isinstance(column, list)
        else np.concatenate([part.columns[name] for part in parts])
        for name, column in parts[0].columns.items()
    }
    return Rows([sample_id for part in parts for sample_id in part.ids], columns)
