"""What every engine on a GPU has to show, whatever its runtime."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.interface import DeviceEngine
from ...engine.slots import BufferSpec, Slot
from .lanes_alone import RawDecoder, measured, numbered, overlapped_equals_alone
from .network import SIZE
from .pictures import smooth_pixels
from .record import Check, CheckFailedError, Found

LEAST_COSINE = 0.999
_PICTURES = 64
_BATCH, _SOAK_BATCH = 32, 8
_SIZES = (8, 3, 8, 1, 10, 2, 10)
"""Batches one after the other: what a larger one left must not show in a smaller one, nor its shape in the next."""

Rows = Callable[[NDArray[np.uint8]], NDArray[Any]]
OpenEngine = Callable[[], DeviceEngine]


def engine_checks(open_engine: OpenEngine, reference: Rows, *, soak: int = 2000, repeat: int = 150) -> Sequence[Check]:
    """Checks of one engine of the network; ``reference`` gives its rows on the CPU. The engine is opened once."""
    opened = functools.cache(open_engine)

    def rows_equal() -> Found:
        pixels = smooth_pixels(_PICTURES, SIZE)
        engine = opened()
        found = np.concatenate([engine.infer(pixels[at : at + 16])["embedding"] for at in range(0, _PICTURES, 16)])
        return Found(engine.name, {"lowest_cosine": lowest_cosine(found, reference(pixels))})

    def sizes_in_turn() -> Found:
        pixels = smooth_pixels(max(_SIZES), SIZE, seed=1)
        wanted = reference(pixels)
        lowest = min(lowest_cosine(rows, wanted[: len(rows)]) for rows in _in_turn(opened(), pixels))
        return Found(f"batches of {_SIZES} over outputs full of NaN", {"lowest_cosine": lowest})

    def overlapped() -> Found:
        engine, pictures = opened(), smooth_pixels(_PICTURES, SIZE)
        make = functools.partial(_raw, engine, pictures)
        return overlapped_equals_alone(engine, make, numbered(range(_PICTURES)), batches=soak, batch=_SOAK_BATCH)

    def speed() -> Found:
        engine, pictures = opened(), smooth_pixels(_PICTURES, SIZE)
        works = [numbered(range(at, at + _BATCH)) for at in range(0, _PICTURES, _BATCH)]
        return measured(engine, functools.partial(_raw, engine, pictures), works, repeat=repeat)

    return (
        Check("rows equal the CPU's", rows_equal),
        Check("sizes of batches in turn", sizes_in_turn),
        Check("overlapped batches", overlapped),
        Check("speed with pixels from memory", speed),
    )


def lowest_cosine(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Lowest cosine of two rows with the same number. Raises CheckFailedError below LEAST_COSINE, on values that are
    not finite, and for a row that is nearer to another one's.
    """
    if found.shape != wanted.shape:
        raise CheckFailedError(f"expected rows {list(wanted.shape)}, found {list(found.shape)}")
    if not np.isfinite(found).all():
        raise CheckFailedError(f"{int((~np.isfinite(found)).sum())} of {found.size} values are not finite")
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    lowest = float(cosines.min())
    nearest = np.abs(a[:, None] - b[None]).sum(axis=2).argmin(axis=1)
    if (nearest != np.arange(len(a))).any():
        row = int((nearest != np.arange(len(a))).argmax())
        raise CheckFailedError(f"row {row} is nearer to the CPU's row {int(nearest[row])} than to its own")
    if not lowest >= LEAST_COSINE:
        raise CheckFailedError(f"row {int(cosines.argmin())} has cosine {lowest:.6f} to the CPU's, not {LEAST_COSINE}")
    return lowest


def _raw(engine: DeviceEngine, pictures: NDArray[np.uint8], pool: object) -> RawDecoder:
    del pool  # nothing is decoded
    return RawDecoder(engine.device, pictures)


def _in_turn(engine: DeviceEngine, pixels: NDArray[np.uint8]) -> list[NDArray[Any]]:
    """Rows of batches of _SIZES, one context and one set of buffers for all, poisoned before each."""
    device, stream = engine.device, engine.device.new_stream("sizes")
    specs = {"pixels": BufferSpec(pixels.shape, np.uint8), **engine.output_specs(len(pixels))}
    pinned = {f"host {name}": BufferSpec(spec.shape, spec.dtype, pinned=True) for name, spec in specs.items()}
    slot, context = Slot(device, specs | pinned), engine.new_context(stream)
    buffers, found = slot.buffers, []
    outputs = {"embedding": buffers["embedding"]}
    errors: list[BaseException] = []

    def batch(rows: int) -> None:
        try:
            device.copy(outputs["embedding"], buffers["host embedding"], stream=stream)
            device.copy(buffers["pixels"][:rows], buffers["host pixels"][:rows], stream=stream)
            context.enqueue(buffers["pixels"], outputs, rows, stream=stream)
            device.copy(buffers["host embedding"], outputs["embedding"], stream=stream)
        except BaseException as error:  # raised below
            errors.append(error)

    for rows in _SIZES:
        buffers["host embedding"].fill(np.nan)
        buffers["host pixels"][...] = 255
        buffers["host pixels"][:rows] = pixels[:rows]
        stream.submit(lambda rows=rows: batch(rows))  # type: ignore[misc]
        stream.synchronize()
        if errors:
            raise errors[0]
        found.append(buffers["host embedding"][:rows].copy())
    context.close()
    stream.close()
    slot.close()
    return found
