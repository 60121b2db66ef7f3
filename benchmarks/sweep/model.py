"""What a sweep is made of: options, series of growing batches, and one cell for each point.

Knows no process and no runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...engine.decoders.make import DecoderName
from ...engine.errors import UsageError
from ...engine.spec import Precision, Task
from ...export.options import PRETRAINED
from ..measure import Spread

LEAST_GAIN = 1.05
"""A doubled batch that gains less than this is not worth its memory and latency: the plateau."""

Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What is swept, and how each point is measured.

    ``resolutions`` are (height, width); empty means the model's own. A point is measured in ``rounds`` passes of about
    ``seconds`` each, over ``images`` files at most, which are taken again where a pass needs more. ``lanes`` None
    means one for each usable CPU.
    """

    model: str
    precisions: tuple[Precision, ...] = (Precision.FP32,)
    resolutions: tuple[Size, ...] = ()
    decoders: tuple[DecoderName, ...] = (DecoderName.TURBO,)
    max_batch: int = 64
    device: str = "cpu"
    lanes: int | None = None
    threads: int = 1
    rounds: int = 3
    seconds: float = 1.0
    images: int = 256
    task: Task | None = None
    weights: str = PRETRAINED

    def __post_init__(self) -> None:
        for name, values in (("precision", self.precisions), ("decoder", self.decoders)):
            if not values:
                raise UsageError(f"A sweep needs at least one {name}. Give one.")
        for name in ("precisions", "resolutions", "decoders"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise UsageError(f"The {name} name one twice: {', '.join(map(str, values))}. Name each once.")

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "precisions": [precision.value for precision in self.precisions],
            "resolutions": [text_of_size(size) for size in self.resolutions],
            "decoders": [decoder.value for decoder in self.decoders],
            "max_batch": self.max_batch,
            "device": self.device,
            "lanes": self.lanes,
            "threads": self.threads,
            "rounds": self.rounds,
            "pass_s": self.seconds,
            "images": self.images,
            "task": self.task.value if self.task is not None else None,
            "weights": self.weights,
        }


def text_of_size(size: Size) -> str:
    """``HEIGHTxWIDTH``, as reports show it."""
    return f"{size[0]}x{size[1]}"


def size_from_text(text: str) -> Size:
    """Size from ``N`` or ``HEIGHTxWIDTH``; raises UsageError for anything else."""
    words = text.strip().lower().split("x")
    if len(words) <= 2 and all(word.isdecimal() and int(word) > 0 for word in words):
        return int(words[0]), int(words[-1])
    raise UsageError(f"No resolution '{text}'. Give pixels, such as 224, or HEIGHTxWIDTH.")


@dataclass(frozen=True, slots=True)
class Series:
    """Everything but the batch size."""

    precision: Precision
    size: Size
    decoder: DecoderName

    @property
    def keys(self) -> tuple[str, str, str]:
        return self.precision.value, text_of_size(self.size), self.decoder.value

    def __str__(self) -> str:
        return ", ".join(self.keys)


@dataclass(frozen=True, slots=True)
class Cell:
    """One point: a series at a batch size. Without ``throughput`` it failed, and ``error`` says why.

    Throughput is in samples/s, CPU time in ms per sample, latency that of a batch in seconds from its first byte asked
    for to its results handed over. ``gain`` is the throughput over that of half the batch (None for the first).
    ``others_share`` (0..1) of the CPUs was used by other processes meanwhile.
    """

    series: tuple[str, str, str]
    batch_size: int
    throughput: Spread | None = None
    gain: float | None = None
    latency_p50_s: float | None = None
    latency_p99_s: float | None = None
    cpu_ms: Spread | None = None
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None
    gpu_busy_share: float | None = None
    others_share: float | None = None
    error: str | None = None

    @property
    def rate(self) -> float:
        """Median throughput in samples/s, 0 for a failed cell."""
        return self.throughput.median if self.throughput is not None else 0.0

    @property
    def is_flat(self) -> bool:
        """Whether doubling the batch to this one was not worth it."""
        return self.gain is not None and self.gain < LEAST_GAIN

    def to_json(self) -> dict[str, Any]:
        precision, resolution, decoder = self.series
        return {
            "precision": precision,
            "resolution": resolution,
            "decoder": decoder,
            "batch_size": self.batch_size,
            "throughput_samples_per_s": _spread_to_json(self.throughput),
            "gain_over_half_batch": self.gain,
            "latency_p50_s": self.latency_p50_s,
            "latency_p99_s": self.latency_p99_s,
            "cpu_ms_per_sample": _spread_to_json(self.cpu_ms),
            "peak_memory_bytes": self.peak_memory_bytes,
            "peak_gpu_memory_bytes": self.peak_gpu_memory_bytes,
            "gpu_busy_share": self.gpu_busy_share,
            "cpus_used_by_others_share": self.others_share,
            "error": self.error,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Cell:
        return cls(
            series=(values["precision"], values["resolution"], values["decoder"]),
            batch_size=values["batch_size"],
            throughput=_spread_from_json(values["throughput_samples_per_s"]),
            gain=values["gain_over_half_batch"],
            latency_p50_s=values["latency_p50_s"],
            latency_p99_s=values["latency_p99_s"],
            cpu_ms=_spread_from_json(values["cpu_ms_per_sample"]),
            peak_memory_bytes=values["peak_memory_bytes"],
            peak_gpu_memory_bytes=values["peak_gpu_memory_bytes"],
            gpu_busy_share=values["gpu_busy_share"],
            others_share=values["cpus_used_by_others_share"],
            error=values["error"],
        )


class Gate(StrEnum):
    """What is known of a precision's agreement with fp32: it passed the gate, is fp32 itself, or was not judged."""

    PASSED = "passed"
    REFERENCE = "reference"
    UNKNOWN = "not judged here"


@dataclass(frozen=True, slots=True)
class SeriesNote:
    """What a series ran: the system in one line, and what the gate said of its precision."""

    series: tuple[str, str, str]
    system: str
    gate: Gate

    def to_json(self) -> dict[str, Any]:
        precision, resolution, decoder = self.series
        return {
            "precision": precision,
            "resolution": resolution,
            "decoder": decoder,
            "system": self.system,
            "gate": self.gate.value,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SeriesNote:
        series = (values["precision"], values["resolution"], values["decoder"])
        return cls(series, values["system"], Gate(values["gate"]))


def _spread_to_json(spread: Spread | None) -> dict[str, float] | None:
    return spread.to_json() if spread is not None else None


def _spread_from_json(values: Mapping[str, Any] | None) -> Spread | None:
    return Spread.from_json(values) if values is not None else None
