"""Loaders against each other: how near ours comes to the floor, and what others take for the same pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..engine.cpu import cpu_allowance
from ..engine.decoders.interface import DecodeMode
from ..engine.preprocess import Preprocess
from .compare import with_ratios
from .comparison import LOADING, ComparisonReport, Status, SystemRow
from .entrant import Entrant, take_turns
from .systems.interface import MakeSystem, SystemOptions
from .systems.loaders import dali_loader, decode_alone, pil_loader, torchvision_loader, vdali_loader

SPEC = Preprocess(size=(224, 224), resize=(256, 256))
MOST_DIFFERENCE = 0.5
"""Mean absolute difference of a picture, in levels, above which a loader's pixels count as wrong."""

_REFERENCE = "DataLoader + PIL"
_COMPETE = (_REFERENCE, "DataLoader + torchvision.io", "DALI")


def compare_loaders(
    files: Sequence[Path],
    *,
    rounds: int,
    say: Callable[[str], None],
    what: str,
    batch_size: int = 32,
    exact: bool = False,
) -> ComparisonReport:
    """Every loader over ``files``, JPEGs; with ``exact`` also vdali without DCT scaling, which only large ones show, in
    place of a single lane.

    ``what`` says for people which files they are. The reference is DataLoader + PIL.
    """
    options = SystemOptions(batch_size=batch_size, cpus=cpu_allowance().threads)
    lanes = options.cpus
    ours = f"vdali turbo, {lanes} lanes"
    makes: dict[str, MakeSystem] = {
        "simplejpeg decode alone": decode_alone,
        "vdali turbo, 1 lane": partial(vdali_loader, SPEC, options, 1, DecodeMode.FAST),
        ours: partial(vdali_loader, SPEC, options, lanes, DecodeMode.FAST),
        f"{ours}, exact": partial(vdali_loader, SPEC, options, lanes, DecodeMode.EXACT),
        _REFERENCE: partial(pil_loader, SPEC, options),
        "DataLoader + torchvision.io": partial(torchvision_loader, SPEC, options),
        "DALI": partial(dali_loader, SPEC, options),
    }
    del makes["vdali turbo, 1 lane" if exact else f"{ours}, exact"]
    entrants = [Entrant(label, make) for label, make in makes.items()]
    elsewhere = take_turns(entrants, files, rounds=rounds, say=say)
    mine = next(entrant for entrant in entrants if entrant.label == ours)
    pictures = next(entrant for entrant in entrants if entrant.label == _REFERENCE).outputs or {}
    reference = pictures.get("pixels")
    return ComparisonReport(
        model=f"loader: {what} to uint8 224x224 (shorter side 256, bilinear, centre crop)",
        task=LOADING,
        weights="none",
        images=len(files),
        input_bytes=sum(path.stat().st_size for path in files),
        batch_size=batch_size,
        rounds=rounds,
        device="cpu",
        cpus=options.cpus,
        ours=ours,
        reference=_REFERENCE if reference is not None else None,
        rows=tuple(_judged(with_ratios(entrant, mine, len(files)), entrant, reference, files) for entrant in entrants),
        cpus_used_by_others_share=elsewhere,
    )


def _judged(row: SystemRow, entrant: Entrant, reference: NDArray[np.uint8] | None, files: Sequence[Path]) -> SystemRow:
    """Row with how far its pixels are from the reference, marked where that is too far."""
    row = replace(row, competes=entrant.label in _COMPETE)
    pixels = (entrant.outputs or {}).get("pixels")
    if reference is None or pixels is None or entrant.label == _REFERENCE:
        return row
    differences = [
        np.abs(a.astype(np.int16) - b.astype(np.int16)).mean(dtype=np.float64)
        for a, b in zip(pixels, reference, strict=True)
    ]
    worst = int(np.argmax(differences))
    row = replace(row, worst_difference_levels=float(differences[worst]), worst_image=str(files[worst]))
    if differences[worst] <= MOST_DIFFERENCE:
        return row
    note = f"{differences[worst]:.2f} levels (mean) from {_REFERENCE} for {files[worst]}"
    return replace(row, status=Status.WRONG, note=note)
