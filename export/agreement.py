"""Numbers of an agreement between two models, the limits that it must keep, and the pictures that speak against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..engine.spec import Precision


@dataclass(frozen=True, slots=True)
class Limits:
    """Least agreement (for ``norm_difference_max``: greatest difference) over all pictures; None is no limit.

    Cosines are of a picture's raw output (logits, or the embedding before normalisation) with the reference's, ``p1``
    is their first percentile. ``top1_exact`` is the share of pictures with the same best class; ``top1`` counts a near
    tie as the same: the reference itself scores the candidate's class within 10 % of its own best. ``iou`` is a
    picture's mean intersection over union of the classes that cover 1 % or more of it. ``norm_difference`` is
    |length / reference's length - 1|: a cosine does not see a factor.
    """

    cosine_min: float | None = None
    cosine_p1: float | None = None
    cosine_median: float | None = None
    top1: float | None = None
    top1_exact: float | None = None
    iou_min: float | None = None
    iou_mean: float | None = None
    norm_difference_max: float | None = None


_FP32 = Limits(cosine_min=0.9999, top1=0.97, iou_min=0.95, iou_mean=0.99, norm_difference_max=0.01)
_FP16 = Limits(cosine_min=0.999, top1=0.97, iou_min=0.8, iou_mean=0.97, norm_difference_max=0.02)
_BF16 = Limits(cosine_min=0.97, cosine_median=0.997, top1=0.93, iou_min=0.4, iou_mean=0.85, norm_difference_max=0.1)
"""Looser than fp16, since bf16 has 8 significant bits where fp16 has 11. Measured on photos: EfficientNet-Lite0 cosine
0.989 at least, 0.9991 in the middle, top-1 0.98; MobileNetV2 0.998, 0.9993, 0.96; DeepLabV3 IoU 0.55 and 0.93."""

_INT8 = Limits(cosine_p1=0.95, cosine_median=0.99, top1=0.97, iou_min=0.2, iou_mean=0.8, norm_difference_max=0.2)
"""Measured on photos: DeepLabV3 IoU 0.32 at least (photos that show none of its classes) and 0.92 in the mean; lengths
off by 0.07 at most (five networks)."""

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
    top1_exact: float | None = None
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
                found.append(f"{name} {value:.5f} {sign} {limit:g}, worst {self._worst(name)}")
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
        if self.top1_exact != self.top1:
            parts.append(f"exact {self.top1_exact:.3f}")
        if self.left_out:
            parts.append(f"{self.left_out} left out: fp32 itself is not finite")
        return ", ".join(parts)

    def _worst(self, name: str) -> str:
        worst = self.worst.get(name) or self.worst[name.partition("_")[0]]
        return f"{worst.id}: {worst.found}"
