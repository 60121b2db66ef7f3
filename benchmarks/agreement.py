"""Whether two systems gave the same answer: one similarity per image, 1 where they are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.spec import Precision, Task
from .systems.interface import Outputs

LOWEST_COSINE = {Precision.INT8: 0.95, Precision.INT8_FP16: 0.95}
LOWEST_COSINE_OF_FLOATS = 0.999
"""Below these the answer of an image counts as wrong."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How near a system is to the reference: lowest and median cosine over the images, and the image of the lowest."""

    lowest: float
    median: float
    worst: int

    def is_wrong(self, precision: Precision) -> bool:
        return not self.lowest >= LOWEST_COSINE.get(precision, LOWEST_COSINE_OF_FLOATS)


def agreement(task: Task, outputs: Outputs, reference: Outputs) -> Agreement | None:
    """Agreement of two outputs for the same images, or None where their shapes differ."""
    if any(outputs[name].shape[0] != reference[name].shape[0] for name in reference):
        return None
    if task is Task.CLASSIFY:
        values = _of_best(outputs, reference)
    elif outputs["embedding"].shape != reference["embedding"].shape:
        return None
    else:
        values = cosine(outputs["embedding"], reference["embedding"])
    worst = int(values.argmin())
    return Agreement(float(values[worst]), float(np.median(values)), worst)


def cosine(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Cosine of each pair of rows; 0 where a value is not finite or only one row is zero, 1 where both are."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1)
    product = norms[0] * norms[1]
    with np.errstate(invalid="ignore"):
        dots = (x * y).sum(axis=1)
    values: NDArray[np.float64] = np.divide(
        dots, product, out=np.zeros_like(product), where=np.isfinite(product) & (product > 0)
    )
    values[(norms[0] == 0) & (norms[1] == 0)] = 1.0
    values[~np.isfinite(values)] = 0.0
    return values


def _of_best(outputs: Outputs, reference: Outputs) -> NDArray[np.float64]:
    """Cosine of the best classes' scores, over the classes that either names.

    A class that one of them leaves out has at most that one's smallest score there: that, or the other's score where
    it is smaller, is taken. So two classes that change places at the end of the lists cost little.
    """
    pairs = zip(
        outputs["top_labels"], outputs["top_scores"], reference["top_labels"], reference["top_scores"], strict=True
    )
    return np.array([_cosine_of_scores(_scores(a, b), _scores(c, d)) for a, b, c, d in pairs])


def _scores(labels: NDArray[Any], scores: NDArray[Any]) -> dict[int, float]:
    return dict(zip(labels.tolist(), scores.astype(np.float64).tolist(), strict=True))


def _cosine_of_scores(a: dict[int, float], b: dict[int, float]) -> float:
    classes = sorted(a.keys() | b.keys())
    least_a, least_b = min(a.values()), min(b.values())
    x = [a[key] if key in a else min(least_a, b[key]) for key in classes]
    y = [b[key] if key in b else min(least_b, a[key]) for key in classes]
    return float(cosine(np.array([x]), np.array([y]))[0])
