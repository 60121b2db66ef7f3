"""``vdali sweep``: batch sizes doubled until it no longer pays, for every precision, resolution and decoder.

Each point is measured in a process of its own, so that a crash is a row and not an end.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ...engine.backends.content import model_content
from ...engine.cpu import cpu_allowance, cpu_model, has_vnni
from ...engine.errors import OutputError, VdaliError
from ...engine.job import environment
from ...engine.plans.files import locked
from ...engine.version import __version__
from ..bench_file import check_writable
from ..compare import gpu_of
from ..comparison import SystemRow
from ..systems.interface import MakeSystem
from .file import SweepFile
from .measure import CellTimer
from .model import LEAST_GAIN, Cell, Gate, Series, SeriesNote, SweepOptions, text_of_size
from .models import SweepModels
from .rules import crowding, end_of, is_lack_of_memory, plateau_of, recommend
from .system import cell_maker
from .tokens import Attention, attention_of

_AT_ONCE_ON_GPU = 2
"""Batches that a lane of a GPU has on it at once: one computes while another one is copied."""

Say = Callable[[str], None]


class Contender(Protocol):
    """Where a sweep gets the systems of a series from."""

    def __call__(self, series: Series) -> tuple[Callable[[int], MakeSystem], Gate]:
        """Maker of the series' system by batch size, and what is known of its precision; raises VdaliError."""
        ...


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What one sweep measures: series in order, growing to ``max_batch``; ``resolution`` is the model's own."""

    series: Sequence[Series]
    max_batch: int
    resolution: str


def sweep(
    options: SweepOptions,
    inputs: Sequence[str],
    stage: Callable[[SweepModels], tuple[list[Path], dict[str, str]]],
    output: Path,
    *,
    retry_failures: bool = False,
    say: Say,
) -> dict[str, Any]:
    """Run or go on with a sweep; returns the document that ``output`` then holds.

    ``inputs`` name the images for the file, ``stage`` gives those to measure with and those left out.

    Raises OutputError where ``output`` holds another sweep or another process sweeps into it, and what
    ``SweepModels`` and ``stage`` raise. A point that fails raises nothing.
    """
    models = SweepModels(options, say)
    facts = options.to_json() | {
        "inputs": list(inputs),
        "model_content": model_content(models.base),
        "cpu": f"{cpu_model() or platform.machine()}, {cpu_allowance().threads} usable",
        "vdali": __version__,
    }
    check_writable(output)
    lock = output.with_name(f"{output.name}.lock")
    with locked(lock) as held:
        if not held:
            raise OutputError(f"Another process sweeps into {output}. Wait for it, or choose another -o.")
        try:
            file = SweepFile(output, facts, more=_about(options, models), retry_failures=retry_failures)
            if file.found:
                say(f"{output} has {file.found} points already: they are not measured again")
            files, left_out = stage(models)
            notes = [f"{len(left_out)} entries of the input were left out: they do not decode"] if left_out else []
            return _swept(options, models, files, file, notes, say)
        finally:
            lock.unlink(missing_ok=True)


def _about(options: SweepOptions, models: SweepModels) -> dict[str, Any]:
    spec = models.spec
    machine = environment(gpu_of(options.device))
    return {"environment": machine, "model": spec.name, "weights": spec.weights, "task": spec.task.value}


def _swept(
    options: SweepOptions, models: SweepModels, files: Sequence[Path], file: SweepFile, notes: Sequence[str], say: Say
) -> dict[str, Any]:
    gpu = gpu_of(options.device)
    lanes = options.lanes or (max(1, cpu_allowance().threads // options.threads) if gpu is None else _AT_ONCE_ON_GPU)
    timer = CellTimer(files, lanes, options.rounds, options.seconds, gpu)
    sizes = options.resolutions or (models.size,)
    plan = SweepPlan(
        [
            Series(precision, size, decoder)
            for size in sizes
            for precision in options.precisions
            for decoder in options.decoders
        ],
        options.max_batch,
        text_of_size(models.size),
    )
    measure_series(plan, partial(_contender, options, models), timer, file, say)
    cells = [cell for series in plan.series for cell in file.cells_of(series)]
    notes = [*notes, *filter(None, [crowding(cells)])]
    return conclude(plan, file, _attention(models, sizes, say), notes, vnni=gpu is not None or _has_int8())


def _contender(options: SweepOptions, models: SweepModels, series: Series) -> tuple[Callable[[int], MakeSystem], Gate]:
    found = models.at(series.precision, series.size)

    def maker(batch_size: int) -> MakeSystem:
        return cell_maker(
            found.path,
            series.decoder,
            batch_size,
            device=options.device,
            lanes=options.lanes,
            threads=options.threads,
        )

    return maker, found.gate


def measure_series(plan: SweepPlan, contender: Contender, timer: CellTimer, file: SweepFile, say: Say) -> None:
    """Grow each series until it ends; cells that ``file`` holds already are not measured again."""
    rate: float | None = None
    for series in plan.series:
        while end_of(cells := file.cells_of(series), plan.max_batch) is None:
            try:
                maker, gate = contender(series)
            except VdaliError as error:
                file.add(Cell(series.keys, 1, error=str(error)))
                say(f"{series}: {error}")
                break
            before = cells[-1] if cells else None
            batch_size = 2 * before.batch_size if before is not None else 1
            found = timer.measure(maker(batch_size), batch_size, before.rate if before is not None else rate)
            cell = replace(_cell(series, batch_size, found.row), others_share=found.others_share)
            if before is not None and cell.error is None:
                cell = replace(cell, gain=_gain(timer, maker, before, cell))
            rate = cell.rate or rate
            system = found.row.description.partition(", micro-batch")[0]  # that is each cell's own
            file.add(cell, SeriesNote(series.keys, system, gate) if system else None)
            say(_line(series, cell))


def _cell(series: Series, batch_size: int, row: SystemRow) -> Cell:
    if row.throughput is None:
        is_plain = is_lack_of_memory(row.note) and "of memory" not in row.note
        return Cell(series.keys, batch_size, error=f"out of memory: {row.note}" if is_plain else row.note)
    return Cell(
        series.keys,
        batch_size,
        throughput=row.throughput,
        latency_p50_s=row.latency_p50_s,
        latency_p99_s=row.latency_p99_s,
        cpu_ms=row.cpu_ms,
        peak_memory_bytes=row.peak_memory_bytes,
        peak_gpu_memory_bytes=row.gpu_memory_bytes,
        gpu_busy_share=row.gpu_utilisation,
    )


def _gain(timer: CellTimer, maker: Callable[[int], MakeSystem], half: Cell, whole: Cell) -> float:
    """Gain over half the batch.

    One that seems too small would end the series, so it is measured again, side by side: machines drift.
    """
    gain = whole.rate / half.rate
    if gain >= LEAST_GAIN:
        return gain
    again = timer.gain(maker(half.batch_size), maker(whole.batch_size), whole.batch_size, whole.rate)
    return again if again is not None else gain


def conclude(
    plan: SweepPlan, file: SweepFile, attention: Sequence[dict[str, Any]], notes: Sequence[str], *, vnni: bool
) -> dict[str, Any]:
    """Mark plateaus and the recommended point; returns the document."""
    found = [cells for series in plan.series if (cells := file.cells_of(series))]
    plateaus = [cell for cells in found if (cell := plateau_of(cells)) is not None]
    chosen = recommend(found, file.notes, resolution=plan.resolution, vnni=vnni)
    return file.finish(
        plateaus=plateaus,
        recommended=chosen.cell if chosen is not None else None,
        reason=chosen.reason if chosen is not None else "",
        attention=attention,
        notes=notes,
    )


def _attention(models: SweepModels, sizes: Sequence[tuple[int, int]], say: Say) -> list[dict[str, Any]]:
    """Tokens and attention cost at each resolution; costs are relative to the model's own. Empty for other networks."""
    base = _attention_at(models.base, say)
    if base is None:
        return []
    rows = []
    for size in sizes:
        try:
            path = models.base if size == models.size else models.at(models.spec.precision, size).path
        except VdaliError:
            continue
        found = _attention_at(path, say)
        if found is not None:
            rows.append({"resolution": text_of_size(size), **found.to_json(base)})
    return rows


def _attention_at(path: Path, say: Say) -> Attention | None:
    try:
        return attention_of(path)
    except Exception as error:  # onnx and protobuf share no base; the sweep stands without these numbers
        say(f"The attention of {path.name} could not be counted: {' '.join(str(error).split())}")
        return None


def _has_int8() -> bool:
    return platform.machine().lower() not in ("x86_64", "amd64") or has_vnni()


def _line(series: Series, cell: Cell) -> str:
    if cell.throughput is None:
        return f"{series}, batch {cell.batch_size}: {cell.error}"
    gain = f", {cell.gain:.2f}x of half the batch" if cell.gain is not None else ""
    return f"{series}, batch {cell.batch_size}: {cell.throughput.text(1)} images/s{gain}"
