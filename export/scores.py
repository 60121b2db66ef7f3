"""Gathers the agreement of two models' outputs batch by batch: cosines, lengths, labels, masks, NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.errors import ModelError
from ..engine.spec import ModelSpec, Precision
from .agreement import Agreement, Worst

CLASS_SHARE = 0.01
"""Classes that cover less of both masks are left out of a picture's IoU: a speck that comes or goes would halve it."""

NEAR_TIE = 0.9
"""Share of the best score from which on the reference counts as undecided between two classes. Random weights make all
pictures near ties (top-1 in int8 0.86 exact, 1.0 decided), where trained ones have few (EfficientNet-Lite0: 2 of 47);
MobileNetV2's flips in int8 on 47 photos, at shares of 0.37 to 0.64, all count."""


class Scores:
    """Gathers the agreement batch by batch; a picture that comes up twice keeps its worse value."""

    def __init__(self, spec: ModelSpec, ids: Sequence[str]) -> None:
        count = len(ids)
        self._spec = spec
        self._ids = ids
        self._cosine = np.full(count, np.nan)
        self._norm = np.full(count, np.nan)
        self._iou = np.full(count, np.nan)
        self._labels: dict[int, tuple[int, int]] = {}  # of each picture: the candidate's class and the reference's
        self._label_share = np.ones(count)
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
            self._add_labels(rows, got["top_labels"][:, 0], expected)
        if "mask" in got:
            ious = [iou(left, right) for left, right in zip(got["mask"], expected["mask"], strict=True)]
            np.fmin.at(self._iou, rows, np.array(ious))
        vectors = _vectors(self._spec, got, expected)
        if vectors is not None:
            cosines, differences = _compared(*vectors)
            np.fmin.at(self._cosine, rows, cosines)
            np.fmax.at(self._norm, rows, differences)

    def agreement(self, precision: Precision, judged: str, sizes: Sequence[int], content: str) -> Agreement:
        """Numbers over all pictures; raises ModelError when the reference is not finite for most."""
        good = np.flatnonzero(~self._left_out & ~self._broken)
        lost = int(self._left_out.sum())
        if 2 * lost > len(self._ids):  # what is left says little
            share = "every picture" if lost == len(self._ids) else f"{lost} of {len(self._ids)} pictures"
            raise ModelError(
                f"The fp32 model {self._spec.name} itself gives NaN or infinity for {share}. Look for bad "
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
            same = np.array([left == right for left, right in (self._labels[row] for row in good.tolist())])
            close = self._label_share[good] >= NEAR_TIE
            values["top1"], values["top1_exact"] = float(close.mean()), float(same.mean())
            if not same.all():
                # of those with another class, the one that the reference finds least likely
                row = int(good[~same][self._label_share[good][~same].argmin()])
                worst["top1"] = Worst(self._ids[row], "class {} instead of {}".format(*self._labels[row]))

    def _named(self, row: np.intp, words: str, values: NDArray[np.float64]) -> Worst:
        return Worst(self._ids[int(row)], words.format(values[row]))

    def _add_labels(self, rows: NDArray[np.intp], got: NDArray[Any], expected: Mapping[str, NDArray[Any]]) -> None:
        shares = _shares(self._spec, got, expected)
        labels = expected["top_labels"][:, 0]
        for row, label, right, share in zip(rows.tolist(), got.tolist(), labels.tolist(), shares.tolist(), strict=True):
            if row not in self._labels or share < self._label_share[row]:
                self._labels[row] = (label, right)
                self._label_share[row] = share


def _shares(spec: ModelSpec, got: NDArray[Any], expected: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """What the reference scores the classes ``got``, as a share of its best score; 1 for its best class itself."""
    rows = np.arange(len(got))
    logits = expected.get(spec.raw_output)
    if logits is None or logits.ndim != 2:
        scores = _spread(expected, 1 + int(max(got.max(), expected["top_labels"].max())))
        return np.asarray(scores[rows, got] / scores.max(axis=1))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.exp(logits[rows, got].astype(np.float64) - logits.max(axis=1)))


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
