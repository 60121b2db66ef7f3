"""Is the written file the same function as its source? Batches of 1, 2, 3 and 8, rows, values and outputs.

Cosine alone would not see a wrong scale, nor two rows exchanged where a network gives nearly the same for every
picture (random weights do), so norms and the nearest row are compared too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..engine.errors import AgreementError, ModelError
from ..engine.spec import ModelSpec, Task
from .core import Core, Gives
from .session import Run, open_session

SIZES = (1, 2, 3, 8)
AFTERWARDS = (3, 8, 1)
"""Batches that follow 8 through the same session: state left over from the bigger one would show."""

MIN_COSINE = 0.9999
MAX_NORM_DIFFERENCE = 0.01
MIN_EQUAL_LABELS = 0.999
"""Share of mask pixels that must agree: float sums in another order turn near ties."""

_SCORE_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well a file agrees with its source: lowest cosine (or share of equal mask pixels) over all rows."""

    lowest: float
    batches: tuple[int, ...] = (*SIZES, *AFTERWARDS)


def trial_pictures(size: tuple[int, int]) -> NDArray[np.uint8]:
    """Eight fixed pictures, uint8 [8, height, width, 3]: noise (dark, bright), smooth fields, a gradient, edges."""
    height, width = size
    random = np.random.default_rng(20_240_229)
    pictures = random.integers(0, 256, (8, height, width, 3), dtype=np.uint8)
    pictures[1] //= 8
    pictures[2] = 255 - pictures[2] // 8
    for index in range(3, 6):
        coarse = Image.fromarray(random.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        pictures[index] = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    rows, columns = np.linspace(0, 255, height)[:, None], np.linspace(0, 255, width)[None, :]
    pictures[6] = np.stack([rows + 0 * columns, 0 * rows + columns, (rows + columns) / 2], axis=-1)
    pictures[7] = np.where(pictures[3] > 127, 230, 20)
    pictures[7, height // 4 : height // 2, width // 4 : width // 2] = (200, 30, 60)
    return pictures


def batches_of(run: Run, pictures: NDArray[np.uint8], *, what: str) -> dict[int, Mapping[str, NDArray[Any]]]:
    """Outputs for the first 1, 2, 3 and 8 pictures; raises ModelError unless n pictures give n rows each time."""
    outputs: dict[int, Mapping[str, NDArray[Any]]] = {}
    trouble = ""
    for size in SIZES:
        try:
            found = run(pictures[:size])
        except Exception as error:  # those of PyTorch and ONNX Runtime share no base but Exception
            trouble = trouble or f"a batch of {size} fails: {' '.join(str(error).split())[:300]}"
            continue
        wrong = [f"{name} of shape {list(value.shape)}" for name, value in found.items() if value.shape[:1] != (size,)]
        if wrong:
            trouble = trouble or f"a batch of {size} gives {', '.join(wrong)}"
        else:
            outputs[size] = found
    if trouble:
        good = list(outputs)
        words = f"batch is fixed at {good[0]}" if len(good) == 1 else f"only batches of {good} work"
        raise ModelError(
            f"{what}: {words if good else 'no batch works'} ({trouble}). vdali needs a network that takes any number "
            "of pictures: export it with a dynamic batch, and no reshape to a fixed number of rows."
        )
    return outputs


def expected_rows(reference: Run, pictures: NDArray[np.uint8], *, what: str) -> NDArray[Any]:
    """Output of the source for each picture alone; ``reference`` gives one output.

    Raises ModelError when the source takes no varying batch, is random, mixes the rows of a batch, or gives NaN.
    """
    together = {size: _only(found) for size, found in batches_of(reference, pictures, what=what).items()}
    rest = [_only(reference(pictures[index : index + 1])) for index in range(1, len(pictures))]
    alone = np.concatenate([together[1], *rest])
    if not np.isfinite(alone).all():
        bad = int((~np.isfinite(alone.reshape(len(alone), -1)).all(axis=1)).sum())
        raise ModelError(
            f"{what} itself gives NaN or infinity for {bad} of {len(alone)} trial pictures. "
            "Look for bad weights, or a mean and std that do not belong to it."
        )
    if _lowest(_only(reference(pictures[:1])), alone[:1]) < MIN_COSINE:
        raise ModelError(
            f"{what} gives another result for the same picture the second time. "
            "Switch off what is random in it (dropout that ignores eval mode)."
        )
    if any(_lowest(rows, alone[:size]) < MIN_COSINE for size, rows in together.items()):
        raise ModelError(
            f"{what} gives a picture another result when others are in its batch. "
            "Rows must be independent: look for statistics over the batch (BatchNorm in training mode)."
        )
    return alone


def check_class_ids(expected: NDArray[Any]) -> None:
    """Raises ModelError unless integer class ids fit a uint8 mask."""
    low, high = int(expected.min()), int(expected.max())
    if low < 0 or high > np.iinfo(np.uint8).max:
        raise ModelError(f"The model's class ids span {low} to {high}; masks are uint8 and hold 0 to 255.")


def verify(path: Path, spec: ModelSpec, core: Core) -> Agreement:
    """Compare the written file with ``core.expected``.

    Raises ModelError when the file does not take any batch size, AgreementError when it gives something else.
    """
    pictures = trial_pictures(spec.preprocess.size)
    run = open_session(path, also=spec.raw_output)
    first = batches_of(run, pictures, what=path.name)
    lowest = min(_check_batch(outputs, spec, core, np.arange(size)) for size, outputs in first.items())
    for size in AFTERWARDS:
        rows = np.arange(len(pictures))[-size:]
        lowest = min(lowest, _check_batch(run(pictures[rows]), spec, core, rows))
    _check_plain(path, spec, run, pictures[:3])
    return Agreement(lowest)


def _check_batch(outputs: Mapping[str, NDArray[Any]], spec: ModelSpec, core: Core, rows: NDArray[np.intp]) -> float:
    """Lowest agreement of a batch whose row i shows picture ``rows[i]``."""
    for name, value in outputs.items():
        if not np.isfinite(value).all():
            raise AgreementError(
                f"'{name}' holds NaN or infinity in a batch of {len(rows)}, where the source does not."
            )
    _check_outputs(outputs, spec, core, len(rows))
    return _check_agreement(outputs, spec, core, rows)


def _check_agreement(outputs: Mapping[str, NDArray[Any]], spec: ModelSpec, core: Core, rows: NDArray[np.intp]) -> float:
    size, expected = len(rows), core.expected
    if core.gives is Gives.LABELS:
        return _check_labels(outputs["mask"], expected[rows], size)
    got, wanted = outputs[spec.raw_output], expected.reshape(len(expected), -1)[:, core.label_offset :]
    got = got.reshape(size, -1)
    if core.gives is Gives.PROBABILITIES:
        got, wanted = _softmax(got), wanted / wanted.sum(axis=1, keepdims=True)
    if got.shape[1] != wanted.shape[1]:
        raise AgreementError(f"'{spec.raw_output}' has {got.shape[1]} values a picture, the source {wanted.shape[1]}.")
    lowest = _lowest(got, wanted[rows])
    if lowest < MIN_COSINE:
        raise AgreementError(
            f"The exported graph disagrees with its source: lowest cosine {lowest:.6f} in a batch of {size}, "
            f"{MIN_COSINE} is needed. The export of some operator is wrong; the file is not kept."
        )
    _check_scale(got, wanted[rows], size)
    _check_order(got, wanted, rows)
    return lowest


def _check_scale(got: NDArray[Any], wanted: NDArray[Any], size: int) -> None:
    lengths, expected = (np.linalg.norm(value.astype(np.float64), axis=1) for value in (got, wanted))
    worst = float(np.max(np.abs(lengths - expected) / np.maximum(expected, 1e-12)))
    if worst > MAX_NORM_DIFFERENCE:
        raise AgreementError(
            f"The exported graph's output has another scale: norms differ by {worst:.1%} ({size} rows)."
        )


def _check_order(got: NDArray[Any], wanted: NDArray[Any], rows: NDArray[np.intp]) -> None:
    """Each row is nearest to its own picture's."""
    for index, row in enumerate(rows):
        distances = np.linalg.norm(wanted.astype(np.float64) - got[index], axis=1)
        if distances[row] > distances.min() + 1e-4 * np.linalg.norm(wanted[row]):
            raise AgreementError(
                f"Row {index} of a batch of {len(rows)} belongs to picture {int(distances.argmin())}, not {int(row)}: "
                "the graph mixes the rows of a batch."
            )


def _check_labels(mask: NDArray[Any], wanted: NDArray[Any], size: int) -> float:
    wanted = wanted.reshape(mask.shape)
    share = float((mask == wanted).reshape(size, -1).mean(axis=1).min())
    if share < MIN_EQUAL_LABELS:
        raise AgreementError(f"Only {share:.2%} of a mask's pixels equal the source's in a batch of {size}.")
    return share


def _check_outputs(outputs: Mapping[str, NDArray[Any]], spec: ModelSpec, core: Core, size: int) -> None:
    """The task's outputs follow from the raw output."""
    raw = outputs[spec.raw_output]
    if spec.task is Task.CLASSIFY:
        scores = _softmax(raw)
        wanted = np.sort(scores, axis=1)[:, ::-1][:, : outputs["top_scores"].shape[1]]
        got = np.take_along_axis(scores, outputs["top_labels"], axis=1)
        good = np.allclose(outputs["top_scores"], wanted, atol=_SCORE_TOLERANCE)
        good = good and np.allclose(got, wanted, atol=_SCORE_TOLERANCE)
    elif spec.task is Task.EMBED:
        wanted = raw / np.linalg.norm(raw, axis=1, keepdims=True) if spec.normalize else raw
        good = np.allclose(outputs["embedding"], wanted, atol=1e-5)
    else:
        wanted = raw if core.raw_is_mask else raw.argmax(axis=core.class_axis)
        good = float((outputs["mask"] == wanted.reshape(outputs["mask"].shape)).mean()) >= MIN_EQUAL_LABELS
    if not good:
        raise AgreementError(
            f"The outputs of task {spec.task} do not follow from '{spec.raw_output}' (batch of {size})."
        )


def _check_plain(path: Path, spec: ModelSpec, run: Run, pictures: NDArray[np.uint8]) -> None:
    """The file as it is, without the raw output exposed, gives the same."""
    exposed = run(pictures)
    for name, value in open_session(path)(pictures).items():
        if name == "mask":
            same = float((value == exposed[name]).mean()) >= MIN_EQUAL_LABELS
        else:
            same = value.dtype.kind == "i" or np.allclose(value, exposed[name], atol=_SCORE_TOLERANCE, rtol=1e-3)
        if not same:
            raise AgreementError(f"{path.name} gives another '{name}' with '{spec.raw_output}' exposed than without.")


def _lowest(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Lowest cosine between rows; 1 where both are zero, 0 where one is or a value is not finite."""
    left, right = (value.reshape(len(value), -1).astype(np.float64) for value in (got, wanted))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    both_zero = ~left.any(axis=1) & ~right.any(axis=1)
    cosines = np.divide((left * right).sum(axis=1), lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return float(np.nan_to_num(np.where(both_zero, 1.0, cosines)).min())


def _softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def _only(outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    (value,) = outputs.values()
    return value
