"""Numbers of an agreement between two models, the limits that it must keep, and the pictures that speak against it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import ModelError
from ..engine.spec import ModelSpec, Precision

CLASS_SHARE = 0.01
"""Classes that cover less of both masks are left out of a picture's IoU: a speck that comes or goes would halve it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Least agreement (for ``norm_difference_max``: greatest difference) over all pictures; None is no limit.

    Cosines are of a picture's raw output (logits, or the embedding before normalisation) with the reference's, ``p1``
    is their first percentile. ``top1`` is the share of pictures with the same best class. ``iou`` is a picture's mean
    intersection over union of the classes that cover 1 % or more of it. ``norm_difference`` is |length / reference's
    length - 1|: a cosine does not see a factor.
    """

    cosine_min: float | None = None
    cosine_p1: float | None = None
    cosine_median: float | None = None
    top1: float | None = None
    iou_min: float | None = None
    iou_mean: float | None = None
    norm_difference_max: float | None = None


_FP32 = Limits(cosine_min=0.9999, top1=0.97, iou_min=0.95, iou_mean=0.99, norm_difference_max=0.01)
_FP16 = Limits(cosine_min=0.999, top1=0.97, iou_min=0.8, iou_mean=0.97, norm_difference_max=0.02)
_BF16 = Limits(cosine_min=0.97, cosine_median=0.997, top1=0.93, iou_min=0.4, iou_mean=0.85, norm_difference_max=0.1)
"""Looser than fp16, since bf16 has 8 significant bits where fp16 has 11. Measured on photos: EfficientNet-Lite0 cosine
0.989 at least, 0.9991 in the middle, top-1 0.98; MobileNetV2 0.998, 0.9993, 0.96; DeepLabV3 IoU 0.55 and 0.93."""

_INT8 = Limits(cosine_p1=0.95, cosine_median=0.99, top1=0.97, iou_min=0.3, iou_mean=0.8, norm_difference_max=0.5)

_DEFAULTS = {
    Precision.FP32: _FP32,
    Precision.TF32: _FP16,
    Precision.FP16: _FP16,
    Precision.BF16: _BF16,
    Precision.INT8: _INT8,
    Precision.INT8_FP16: _INT8,
}


def default_limits(precision: Precision) -> Limits:
    """Limits unless a user states others; TF32 has the significant bits of fp16 and its limits."""
    return _DEFAULTS[precision]


@dataclass(frozen=True, slots=True)
class Worst:
    """The picture that speaks most against a candidate in one respect."""

    id: str
    found: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well a candidate agrees with its reference; None where a task has no such number.

    Fields named as in ``Limits`` mean what they mean there. ``batches`` are the sizes that were run, ``judged`` says
    how the candidate computed, ``content`` is that of the pictures. ``non_finite`` counts pictures with NaN or
    infinity where the reference has none; ``left_out`` those where the reference itself has.
    """

    precision: Precision
    pictures: int
    content: str
    judged: str
    batches: tuple[int, ...]
    non_finite: int
    left_out: int
    worst: Mapping[str, Worst]
    cosine_min: float | None = None
    cosine_p1: float | None = None
    cosine_median: float | None = None
    top1: float | None = None
    iou_min: float | None = None
    iou_mean: float | None = None
    norm_difference_max: float | None = None

    def refusals(self, limits: Limits) -> list[str]:
        """What speaks against the candidate, each with its worst picture; empty when it is good enough."""
        found = []
        if self.non_finite:
            found.append(f"{self.non_finite} with NaN or infinity, first {self._worst('non_finite')}")
        for name, limit in asdict(limits).items():
            value = getattr(self, name)
            if limit is None or value is None:
                continue
            is_greatest = name == "norm_difference_max"
            if not (value <= limit if is_greatest else value >= limit):  # NaN keeps no limit
                sign = ">" if is_greatest else "<"
                found.append(f"{name} {value:.5f} {sign} {limit:g}, worst {self._worst(name.partition('_')[0])}")
        return found

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["precision"] = self.precision.value
        values["batches"] = list(self.batches)
        return values

    def __str__(self) -> str:
        """The number that decides and the labels, for a table's cell."""
        parts = []
        if self.iou_mean is not None:
            parts.append(f"IoU {self.iou_mean:.4f}")
        elif self.cosine_min is not None:
            parts.append(f"cosine {self.cosine_min:.5f}..{self.cosine_median:.5f}")
        if self.top1 is not None:
            parts.append(f"top-1 {self.top1:.3f}")
        return ", ".join(parts)

    def _worst(self, kind: str) -> str:
        worst = self.worst[kind]
        return f"{worst.id}: {worst.found}"


class Scores:
    """Gathers the agreement batch by batch; a picture that comes up twice keeps its worse value."""

    def __init__(self, spec: ModelSpec, ids: Sequence[str]) -> None:
        count = len(ids)
        self._spec = spec
        self._ids = ids
        self._cosine = np.full(count, np.nan)
        self._norm = np.full(count, np.nan)
        self._iou = np.full(count, np.nan)
        self._labels: dict[int, tuple[int, int]] = {}
        self._same_label = np.ones(count, dtype=bool)
        self._broken = np.zeros(count, dtype=bool)
        self._left_out = np.zeros(count, dtype=bool)

    def add(
        self, rows: NDArray[np.intp], got: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]
    ) -> None:
        """Outputs of the candidate and the reference; row i of each belongs to picture ``rows[i]``."""
        finite = _finite(expected)
        self._left_out[rows[~finite]] = True
        self._broken[rows[finite & ~_finite(got)]] = True
        if "top_labels" in got:
            self._add_labels(rows, got["top_labels"][:, 0], expected["top_labels"][:, 0])
        if "mask" in got:
            ious = [iou(left, right) for left, right in zip(got["mask"], expected["mask"], strict=True)]
            np.fmin.at(self._iou, rows, np.array(ious))
        vectors = _vectors(self._spec, got, expected)
        if vectors is not None:
            cosines, differences = _compared(*vectors)
            np.fmin.at(self._cosine, rows, cosines)
            np.fmax.at(self._norm, rows, differences)

    def agreement(self, precision: Precision, judged: str, sizes: Sequence[int], content: str) -> Agreement:
        """Numbers over all pictures; raises ModelError when the reference gave no finite value for any."""
        good = np.flatnonzero(~self._left_out & ~self._broken)
        if self._left_out.all():
            raise ModelError(
                f"The fp32 model {self._spec.name} itself gives NaN or infinity for every picture. Look for bad "
                "weights, or a mean and std that do not belong to it."
            )
        values: dict[str, float] = {}
        worst: dict[str, Worst] = {}
        if self._broken.any():
            worst["non_finite"] = Worst(self._ids[int(self._broken.argmax())], "NaN or infinity")
        self._add_measured(good, values, worst)
        return Agreement(
            precision=precision,
            pictures=len(self._ids),
            content=content,
            judged=judged,
            batches=tuple(sizes),
            non_finite=int(self._broken.sum()),
            left_out=int(self._left_out.sum()),
            worst=worst,
            **values,
        )

    def _add_measured(self, good: NDArray[np.intp], values: dict[str, float], worst: dict[str, Worst]) -> None:
        """Numbers of the pictures ``good``, and the worst of them in each respect."""
        if not good.size:
            return
        if not np.isnan(self._cosine[good]).all():
            cosines = self._cosine[good]
            values["cosine_min"] = float(cosines.min())
            values["cosine_p1"] = float(np.percentile(cosines, 1))
            values["cosine_median"] = float(np.median(cosines))
            values["norm_difference_max"] = float(self._norm[good].max())
            worst["cosine"] = self._named(good[cosines.argmin()], "cosine {:.5f}", self._cosine)
            worst["norm"] = self._named(good[self._norm[good].argmax()], "length off by {:.1%}", self._norm)
        if not np.isnan(self._iou[good]).all():
            values["iou_min"] = float(self._iou[good].min())
            values["iou_mean"] = float(self._iou[good].mean())
            worst["iou"] = self._named(good[self._iou[good].argmin()], "IoU {:.4f}", self._iou)
        if self._labels:
            values["top1"] = float(self._same_label[good].mean())
            if values["top1"] < 1:
                worst["top1"] = self._worst_label(good[~self._same_label[good]])

    def _named(self, row: np.intp, words: str, values: NDArray[np.float64]) -> Worst:
        return Worst(self._ids[int(row)], words.format(values[row]))

    def _worst_label(self, other: NDArray[np.intp]) -> Worst:
        """Of the pictures with another label, the one of the lowest cosine."""
        row = int(other[np.nan_to_num(self._cosine[other]).argmin()])
        got, expected = self._labels[row]
        return Worst(self._ids[row], f"class {got} instead of {expected}")

    def _add_labels(self, rows: NDArray[np.intp], got: NDArray[Any], expected: NDArray[Any]) -> None:
        for row, left, right in zip(rows.tolist(), got.tolist(), expected.tolist(), strict=True):
            if self._same_label[row]:
                self._labels[row] = (left, right)
                self._same_label[row] = left == right


def iou(got: NDArray[Any], expected: NDArray[Any]) -> float:
    """Mean intersection over union of the classes that cover CLASS_SHARE or more of either mask [h, w].

    Where no class covers that much: the share of equal pixels.
    """
    values = []
    for label in np.union1d(got, expected):
        left, right = got == label, expected == label
        if max(left.mean(), right.mean()) >= CLASS_SHARE:
            values.append(float((left & right).sum() / (left | right).sum()))
    return float(np.mean(values)) if values else float((got == expected).mean())


def _finite(outputs: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Whether all float values of a row are finite."""
    finite = np.ones(len(next(iter(outputs.values()))), dtype=bool)
    for value in outputs.values():
        if np.issubdtype(value.dtype, np.floating):
            finite &= np.isfinite(value.reshape(len(value), -1)).all(axis=1)
    return finite


def _vectors(
    spec: ModelSpec, got: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """What cosines are taken of: the raw output, else embeddings, else the scores of the best classes."""
    for name in (spec.raw_output, "embedding"):
        if name in got and name in expected and np.issubdtype(expected[name].dtype, np.floating):
            return got[name], expected[name]
    if "top_scores" not in got:
        return None
    width = 1 + int(max(got["top_labels"].max(), expected["top_labels"].max()))
    return _spread(got, width), _spread(expected, width)


def _spread(outputs: Mapping[str, NDArray[Any]], width: int) -> NDArray[np.float64]:
    """Scores at the places of their classes, [n, width]."""
    spread = np.zeros((len(outputs["top_scores"]), width))
    np.put_along_axis(spread, outputs["top_labels"], outputs["top_scores"], axis=1)
    return spread


def _compared(got: NDArray[Any], expected: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosine and relative difference of length, row by row; 1 and 0 where both rows are zero, NaN where one has NaN.

    One row at a time, since a picture's logits per pixel are 22 MB for 21 classes of 513 x 513.
    """
    cosines, differences = np.zeros(len(got)), np.full(len(got), np.inf)
    for row, (left, right) in enumerate(zip(got, expected, strict=True)):
        left, right = left.ravel().astype(np.float64), right.ravel().astype(np.float64)
        length, wanted = float(np.linalg.norm(left)), float(np.linalg.norm(right))
        if length == wanted == 0:
            cosines[row], differences[row] = 1, 0
        elif not math.isfinite(length + wanted):
            cosines[row] = differences[row] = np.nan
        elif length and wanted:
            cosines[row], differences[row] = left @ right / (length * wanted), abs(length / wanted - 1)
    return cosines, differences
