"""What an engine's outputs mean: columns of rows, and the samples whose outputs are not usable.

Knows neither a runtime nor a file format; Pillow is loaded only to write masks.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .batch import Column, Decoded, Failure, Outcome, Rows
from .errors import InferError, ModelError
from .preprocess import Geometry, Preprocess, geometry_of
from .spec import OUTPUT_NAMES, ModelSpec, Task

UNSEEN = 255
"""Mask value of source pixels that the crop cut off: the model never saw them."""

_OUTPUT_RANK = {"top_scores": 2, "top_labels": 2, "embedding": 2, "mask": 3}
_ZLIB_RLE = 3  # zlib's strategy for runs: on an enlarged 48 megapixel mask 0.18 s and 61 kB, default 0.29 s and 250 kB


def rows_from_outputs(spec: ModelSpec, decoded: Sequence[Decoded], outputs: Mapping[str, NDArray[Any]]) -> Outcome:
    """Rows and failures of one batch; row i of every output belongs to ``decoded[i]``.

    Columns by task (n rows, k best classes, d dimensions):

    - classify: ``label`` int32 [n], ``name`` list of str or None (only with ``spec.classes``), ``score``
      float32 [n], ``top_labels`` int32 [n, k], ``top_scores`` float32 [n, k];
    - embed: ``embedding`` float32 [n, d];
    - segment: ``mask_png`` list of bytes, ``height`` and ``width`` int32 [n] of the upright source.

    All have ``salvaged`` bool [n]: the picture was truncated. Nothing returned shares memory with
    ``outputs``. Outputs of a wrong shape make every sample a failure, since no row could be trusted;
    non-finite ones only their own. Raises ModelError when an output is missing.
    """
    names = OUTPUT_NAMES[spec.task]
    missing = [name for name in names if name not in outputs]
    if missing:
        raise ModelError(
            f"Model {spec.name} gives no output '{missing[0]}', which task {spec.task} needs; it gives "
            f"{', '.join(outputs) or 'none'}. Export the model again."
        )
    for name in names:
        if outputs[name].ndim != _OUTPUT_RANK[name] or len(outputs[name]) != len(decoded):
            return Outcome(Rows((), {}), _misshapen(name, outputs[name].shape, decoded))
    reasons = _unusable(spec, outputs)
    failures = [Failure.from_error(decoded[i].id, reasons[i]) for i in sorted(reasons)]
    kept = [i for i in range(len(decoded)) if i not in reasons]
    if not kept:
        return Outcome(Rows((), {}), failures)
    usable = [decoded[i] for i in kept]
    # Indexing with a list copies: nothing below sees the engine's buffers.
    columns = _COLUMNS[spec.task](spec, usable, {name: outputs[name][kept] for name in names})
    columns["salvaged"] = np.array([sample.salvaged for sample in usable], dtype=bool)
    return Outcome(Rows([sample.id for sample in usable], columns), failures)


def _misshapen(name: str, shape: tuple[int, ...], decoded: Sequence[Decoded]) -> list[Failure]:
    error = InferError(
        "output_shape",
        f"Output '{name}' has shape {list(shape)} for {len(decoded)} pictures; expected {_OUTPUT_RANK[name]} axes, "
        f"the first of size {len(decoded)}. Export the model again with a dynamic batch axis.",
    )
    return [Failure.from_error(sample.id, error) for sample in decoded]


def _unusable(spec: ModelSpec, outputs: Mapping[str, NDArray[Any]]) -> dict[int, InferError]:
    """Why row i cannot be used, for rows with NaN, infinity, or a normalised vector that is all zero."""
    reasons: dict[int, InferError] = {}
    for name in OUTPUT_NAMES[spec.task]:
        output = outputs[name]
        if not np.issubdtype(output.dtype, np.floating):
            continue
        for i in np.flatnonzero(~np.isfinite(output).all(axis=1)).tolist():
            reasons[i] = _non_finite(spec, name, output[i])
        if name == "embedding" and spec.normalize:
            for i in np.flatnonzero(~output.any(axis=1)).tolist():
                reasons[i] = InferError(
                    "zero_norm",
                    "Output 'embedding' is all zero, so it has no direction to normalise. "
                    "Export the model without --normalize to keep such vectors.",
                )
    return reasons


def _non_finite(spec: ModelSpec, name: str, values: NDArray[Any]) -> InferError:
    bad = int(np.count_nonzero(~np.isfinite(values)))
    cause = f"{spec.precision} overflows inside the model"
    if spec.normalize:
        cause += ", or a vector of norm zero was normalised"
    return InferError(
        "non_finite",
        f"Output '{name}' has {bad} of {values.size} values that are NaN or infinite. Likely cause: {cause}. "
        "Try another precision.",
    )


def _classify(spec: ModelSpec, decoded: Sequence[Decoded], outputs: Mapping[str, NDArray[Any]]) -> dict[str, Column]:
    del decoded  # labels do not depend on the source's size
    labels = outputs["top_labels"].astype(np.int32, copy=False)
    scores = outputs["top_scores"].astype(np.float32, copy=False)
    columns: dict[str, Column] = {"label": labels[:, 0].copy(), "score": scores[:, 0].copy()}
    if spec.classes is not None:
        count = len(spec.classes)
        columns["name"] = [spec.classes[i] if 0 <= i < count else None for i in labels[:, 0].tolist()]
    return columns | {"top_labels": labels, "top_scores": scores}


def _embed(spec: ModelSpec, decoded: Sequence[Decoded], outputs: Mapping[str, NDArray[Any]]) -> dict[str, Column]:
    del spec, decoded  # a vector is taken as it is
    return {"embedding": outputs["embedding"].astype(np.float32, copy=False)}


def _segment(spec: ModelSpec, decoded: Sequence[Decoded], outputs: Mapping[str, NDArray[Any]]) -> dict[str, Column]:
    masks = outputs["mask"]
    return {
        "mask_png": [
            png_from_mask(mask_at_source(spec.preprocess, masks[i], sample.width, sample.height))
            for i, sample in enumerate(decoded)
        ],
        "height": np.array([sample.height for sample in decoded], dtype=np.int32),
        "width": np.array([sample.width for sample in decoded], dtype=np.int32),
    }


_COLUMNS = {Task.CLASSIFY: _classify, Task.EMBED: _embed, Task.SEGMENT: _segment}


def mask_at_source(preprocess: Preprocess, mask: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Class ids uint8 [height, width] of the upright source, from uint8 [h, w] at any model resolution.

    Undoes crop, padding and resize: each source pixel's centre takes the mask pixel that it falls in
    (nearest neighbour); UNSEEN where the crop cut it off. Peak memory is the result plus
    h x ``width`` bytes.
    """
    geometry = geometry_of(preprocess, width, height)
    columns, first_x, end_x = _taps(geometry, mask.shape[1], width, horizontal=True)
    rows, first_y, end_y = _taps(geometry, mask.shape[0], height, horizontal=False)
    wide = np.full((mask.shape[0], width), UNSEEN, dtype=np.uint8)
    wide[:, first_x:end_x] = mask.take(columns, axis=1)
    result = np.empty((height, width), dtype=np.uint8)
    result[:first_y] = UNSEEN
    result[end_y:] = UNSEEN
    np.take(wide, rows, axis=0, out=result[first_y:end_y], mode="clip")  # "raise" would buffer the whole result
    return result


def _taps(geometry: Geometry, mask_size: int, source_size: int, *, horizontal: bool) -> tuple[NDArray[Any], int, int]:
    """Mask index for each source position in [first, end), the range that the model saw."""
    resized, start, window = (
        (geometry.resized_width, geometry.left, geometry.width)
        if horizontal
        else (geometry.resized_height, geometry.top, geometry.height)
    )
    # Position s covers (s + 1/2) / source_size of the picture; times 2 * source_size, all is integer and exact.
    in_window = (2 * np.arange(source_size, dtype=np.int64) + 1) * resized - 2 * source_size * start
    seen = np.flatnonzero((in_window >= 0) & (in_window < 2 * source_size * window))
    if not seen.size:
        return seen, 0, 0
    index = in_window[seen] * mask_size // (2 * source_size * window)
    return index, int(seen[0]), int(seen[-1]) + 1


def png_from_mask(mask: NDArray[np.uint8]) -> bytes:
    """8-bit grey PNG of uint8 [height, width]."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, format="PNG", compress_level=1, compress_type=_ZLIB_RLE)
    return buffer.getvalue()
