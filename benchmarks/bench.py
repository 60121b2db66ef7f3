"""``vdali bench``: one model over the same images, vdali at some precisions against other systems."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..engine.errors import ModelError, UsageError
from ..engine.job import environment
from ..engine.spec import Precision, Task
from ..export.options import PRETRAINED
from ..export.store import resolve_model
from ..kernels.cache import cache_folder
from .compare import DEFAULT_SYSTEMS, compare, device_of, gpu_of
from .comparison import ComparisonReport, Status, SystemRow
from .data import make_jpegs
from .staged import staged_images
from .systems.make import SystemName
from .systems.network import spec_of

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to compare: ``model`` is a file or a known name, ``against`` are words of SystemName.

    Of the input the first ``images`` are used, ``batch_size`` at most in a call of the model, in ``rounds``
    alternating rounds.
    """

    model: str
    against: Sequence[str] = DEFAULT_SYSTEMS[1:]
    precisions: Sequence[Precision] = (Precision.FP32,)
    task: Task | None = None
    normalize: bool = False
    weights: str = PRETRAINED
    images: int = 256
    rounds: int = 5
    batch_size: int = 32
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Bench:
    """What was found, and ``notes`` about the images."""

    report: ComparisonReport
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For a bench file."""
        return {
            "kind": "benchmark",
            "environment": environment(gpu_of(self.report.device)),
            "comparisons": [self.report.to_json()],
            "notes": list(self.notes),
        }


def bench(options: BenchOptions, inputs: Sequence[str], say: Say) -> Bench:
    """Compare over the first images of ``inputs`` (none: JPEGs of about 500x375 made from the demo photos).

    A precision that cannot be had is a marked row, like a system that fails. Raises UsageError for words that are not
    known, DeviceError for a GPU that is not here, InputNotFoundError without a usable image, and the errors of getting
    the model.
    """
    unknown = [name for name in options.against if name not in list(SystemName)]
    if unknown:
        known = ", ".join(name for name in SystemName if name is not SystemName.VDALI)
        raise UsageError(f"Unknown system '{unknown[0]}'. Use one or more of: {known}.")
    device = device_of(options.device)
    base = _resolved(options, Precision.FP32, say)
    paths, refused = _models(options, say)
    labels = [_label(precision) for precision in paths]
    with _images(options, inputs, base) as (files, notes):
        for note in notes:
            say(note)
        report = compare(
            base,
            files,
            [*labels, *options.against],
            rounds=options.rounds,
            batch_size=options.batch_size,
            device=device,
            precisions=paths,
            say=say,
        )
    return Bench(replace(report, rows=(*report.rows, *refused)), notes)


def _models(options: BenchOptions, say: Say) -> tuple[dict[Precision, Path], list[SystemRow]]:
    """File of each precision, and a row for each that cannot be had; raises its error where that is the only one."""
    paths: dict[Precision, Path] = {}
    refused: list[SystemRow] = []
    for precision in options.precisions:
        try:
            paths[precision] = _resolved(options, precision, say)
        except ModelError as error:
            if len(options.precisions) == 1:
                raise
            say(f"{_label(precision)}: {error}")
            refused.append(SystemRow(_label(precision), Status.FAILED, note=str(error)))
    return paths, refused


def _label(precision: Precision) -> str:
    return SystemName.VDALI.value if precision is Precision.FP32 else f"{SystemName.VDALI}:{precision}"


def _resolved(options: BenchOptions, precision: Precision, say: Say) -> Path:
    return resolve_model(
        options.model,
        precision=precision,
        task=options.task,
        normalize=options.normalize,
        weights=options.weights,
        report=say,
    )


@contextmanager
def _images(options: BenchOptions, inputs: Sequence[str], model: Path) -> Iterator[tuple[list[Path], tuple[str, ...]]]:
    """Files to compare over, which live as long as the block, and what to know of them."""
    if not inputs:
        folder = cache_folder() / f"bench-photos-{options.images}"
        note = "images: JPEGs of about 500x375 made from the demo photos"
        yield make_jpegs(folder, count=options.images), (note,)
        return
    with tempfile.TemporaryDirectory(prefix="vdali-bench-") as name:
        preprocess = spec_of(model).preprocess
        files, left_out = staged_images(inputs, Path(name), preprocess, limit=options.images)
        notes = [f"images: {len(files)} of {', '.join(inputs)}, copied to a temporary folder"]
        if left_out:
            first = next(iter(left_out.items()))
            notes.append(f"{len(left_out)} entries are left out; the first, {first[0]}: {first[1]}")
        yield files, tuple(notes)
