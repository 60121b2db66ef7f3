"""Compares systems over the same files: a process each, one warm-up each, then alternating rounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..engine.cpu import cpu_allowance
from ..engine.errors import DeviceError, InputNotFoundError, UsageError
from ..engine.gpu_probe import probe_gpu
from ..engine.spec import ModelSpec, Precision
from ..engine.words import word
from .agreement import agreement
from .comparison import ComparisonReport, Status, SystemRow
from .entrant import Entrant, take_turns
from .measure import ratio
from .systems.interface import SystemOptions
from .systems.make import SystemName, make_system
from .systems.network import spec_of

DEFAULT_SYSTEMS = ("vdali", "torch", "torch-tuned", "dali-torch")
_REFERENCES = ("torch", "torch-tuned", "dali-torch")
"""Whose answer is held to be right, the first that gave one: PyTorch's own, plainest first."""


def compare(
    model: Path,
    files: Sequence[Path],
    systems: Sequence[str] = DEFAULT_SYSTEMS,
    *,
    rounds: int = 5,
    batch_size: int = 32,
    device: str = "auto",
    precisions: Mapping[Precision, Path] | None = None,
    say: Callable[[str], None] | None = None,
) -> ComparisonReport:
    """Run ``model``, a vdali file, over ``files`` in every system.

    ``systems`` are words of SystemName, or ``vdali:PRECISION`` for a file of ``precisions``; the first vdali among
    them (one is added where there is none) is the one that the others are held against. A system that fails, is not
    installed or gives another answer is a marked row. ``say`` takes lines for people.

    Raises UsageError for unknown words, DeviceError for a GPU that is not here, InputNotFoundError without files,
    ModelError where ``model`` is no vdali file.
    """
    if not files:
        raise InputNotFoundError("There is no image to compare with. Give a folder of images.")
    options = SystemOptions(batch_size, cpu_allowance().threads, device_of(device))
    models = _models(systems, model, precisions or {})
    specs = {label: spec_of(path) for label, path in models.items()}
    entrants = [
        Entrant(label, partial(make_system, SystemName(label.partition(":")[0]), path, options))
        for label, path in models.items()
    ]
    gpu = gpu_of(options.device)
    elsewhere = take_turns(entrants, files, rounds=rounds, say=say or _silent, gpu=gpu)
    ours = next(entrant for entrant in entrants if _is_ours(entrant.label))
    reference = _reference(entrants)
    spec = specs[ours.label]
    return ComparisonReport(
        model=spec.name,
        task=spec.task.value,
        weights=spec.weights,
        images=len(files),
        input_bytes=sum(path.stat().st_size for path in files),
        batch_size=batch_size,
        rounds=rounds,
        device=options.device,
        cpus=options.cpus,
        ours=ours.label,
        reference=reference.label if reference is not None else None,
        rows=tuple(
            _judged(with_ratios(entrant, ours, len(files)), entrant, reference, specs[entrant.label], files)
            for entrant in entrants
        ),
        cpus_used_by_others_share=elsewhere,
        resolution="x".join(map(str, reversed(spec.preprocess.size))),
    )


def with_ratios(entrant: Entrant, ours: Entrant, images: int) -> SystemRow:
    """Row of ``entrant``, held against ``ours`` round by round where both have numbers."""
    row = entrant.row(images)
    if entrant is ours or entrant.problem is not None or ours.problem is not None:
        return row
    return replace(
        row,
        ours_over_this=ratio([r.wall_s for r in entrant.rounds], [r.wall_s for r in ours.rounds]),
        cpu_of_this_over_ours=ratio([r.cpu_s for r in entrant.rounds], [r.cpu_s for r in ours.rounds]),
    )


def _models(systems: Sequence[str], model: Path, precisions: Mapping[Precision, Path]) -> dict[str, Path]:
    """Model file of each system."""
    models: dict[str, Path] = {}
    for label in systems:
        name, _, precision = label.partition(":")
        system = word(SystemName, name, "system")
        models[label] = model
        if precision:
            wanted = word(Precision, precision, "precision")
            if system is not SystemName.VDALI or wanted not in precisions:
                raise UsageError(f"There is no model file for '{label}'. Leave ':{precision}' out, or export one.")
            models[label] = precisions[wanted]
    return models if any(map(_is_ours, models)) else {SystemName.VDALI.value: model} | models


def _is_ours(label: str) -> bool:
    return label.partition(":")[0] == SystemName.VDALI


def device_of(device: str) -> str:
    """``cpu`` or ``cuda:N`` from a user's word, ``auto`` included.

    Raises UsageError for another word, DeviceError for a GPU that is not here.
    """
    if device == "cpu":
        return device
    if device != "auto" and not re.fullmatch(r"cuda(:\d+)?", device):
        raise UsageError(f"No device '{device}'. Use auto, cpu, cuda or cuda:N.")
    gpus = probe_gpu()
    if device == "auto":
        return "cuda:0" if gpus.count else "cpu"
    ordinal = int(device.partition(":")[2] or 0)
    if ordinal >= gpus.count:
        have = f"the last GPU here is cuda:{gpus.count - 1}" if gpus.count else gpus.reason
        raise DeviceError(f"No device '{device}': {have}. Use --device cpu, or run `vdali doctor`.")
    return f"cuda:{ordinal}"


def gpu_of(device: str) -> int | None:
    """CUDA ordinal of what ``device_of`` gives, None for the CPU."""
    return None if device == "cpu" else int(device.rpartition(":")[2])


def _reference(entrants: Sequence[Entrant]) -> Entrant | None:
    """Whose outputs are held to be right; None where there is nothing to compare."""
    answered = {entrant.label: entrant for entrant in entrants if entrant.outputs is not None}
    if len(answered) < 2:
        return None
    return next((answered[label] for label in (*_REFERENCES, *answered) if label in answered), None)


def _judged(
    row: SystemRow, entrant: Entrant, reference: Entrant | None, spec: ModelSpec, files: Sequence[Path]
) -> SystemRow:
    """Row with its agreement, marked where the answer is wrong."""
    if reference is None or reference.outputs is None or entrant.outputs is None or entrant is reference:
        return row
    found = agreement(spec.task, entrant.outputs, reference.outputs)
    if found is None:
        note = f"its outputs have another shape than those of {reference.label}"
        return replace(row, status=Status.WRONG, note=note)
    worst = str(files[found.worst])
    row = replace(row, lowest_cosine=found.lowest, median_cosine=found.median, worst_image=worst)
    if not found.is_wrong(spec.precision):
        return row
    note = f"cosine {found.lowest:.4f} to {reference.label} for {worst}, median {found.median:.4f}"
    return replace(row, status=Status.WRONG, note=note)


def _silent(line: str) -> None:
    del line
