"""From a verified fp32 file to one at another precision: converted, gated on real pictures, then published."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import EncodeError
from onnx import ModelProto

from ..engine.errors import AgreementError, ModelError, UsageError
from ..engine.spec import ModelSpec, Precision
from .agreement import Agreement, Limits
from .calibration import CalibrationSet
from .computed import computes_at
from .half import half_from
from .kept import spec_of, stamp
from .lint import Rule, check
from .options import ExportOptions
from .ranges import beyond_fp16, measure_ranges
from .rounding import rounded
from .sensitivity import blame_of
from .session import read_model
from .typed import prepared
from .validate import LARGEST_BATCH, candidate_from, validate
from .write import write_model

ROUNDS = 6
"""So often a refused model is tried again with more of its worst layers in fp32: 1, 2, 4, ... 32 of them."""

Report = Callable[[str], None]
Attempt = tuple[ModelProto, dict[str, str]]
"""A converted model, and the nodes kept in a higher precision with reasons."""


@dataclass(frozen=True, slots=True)
class PrecisionReport:
    """What an export at one precision came to.

    ``kept`` are the nodes that were kept in a higher precision on evidence: by their range, or after a refusal.
    ``gate_s`` of the ``seconds`` went into comparing, refused attempts included.
    """

    precision: Precision
    size_bytes: int
    agreement: Agreement
    kept: tuple[str, ...]
    seconds: float
    gate_s: float

    def to_json(self) -> dict[str, Any]:
        return {
            "precision": self.precision.value,
            "size_bytes": self.size_bytes,
            "agreement": self.agreement.to_json(),
            "kept": list(self.kept),
            "export_s": self.seconds,
            "gate_s": self.gate_s,
        }


def export_precision(
    fp32: Path,
    out: Path,
    precision: Precision,
    *,
    pictures: CalibrationSet,
    limits: Limits | None = None,
    report: Report | None = None,
    largest_batch: int = LARGEST_BATCH,
) -> PrecisionReport:
    """Write the vdali file ``fp32`` at ``precision`` to ``out``, once it agrees with it on ``pictures``.

    tf32 is the fp32 graph under another name: TensorRT turns it on by a builder flag, a CPU computes fp32. int8 ranges
    are chosen from every other picture, so that the gate sees others, too. A model that is refused is tried again with
    its worst layers in fp32, as long as any is left at ``precision``. Nothing is left at ``out`` unless it is good.

    Raises AgreementError that names the worst picture, ModelError for a file that cannot be used or converted,
    UsageError when ``fp32`` is of another precision, VdaliError when ``out`` cannot be written.
    """
    started = time.perf_counter()
    job = _Job(fp32, precision, pictures, report or _silent)
    gate = _Gate(fp32, job.spec, pictures, limits, largest_batch)
    refusal: AgreementError | None = None
    for model, kept in job.attempts():
        stamp(model, job.spec, precision, kept)
        try:
            write_model(model, out, check=gate.check, data_over=ExportOptions().data_over)
        except AgreementError as error:
            job.report(f"{precision} refused: {error}")
            refusal = error
            continue
        seconds = time.perf_counter() - started
        return PrecisionReport(precision, _size_of(out), gate.found[-1], tuple(kept), seconds, gate.seconds)
    assert refusal is not None
    raise refusal


@dataclass(slots=True)
class _Gate:
    """What every draft has to pass; adds up the seconds that took, and keeps what it found."""

    fp32: Path
    spec: ModelSpec
    pictures: CalibrationSet
    limits: Limits | None
    largest_batch: int
    seconds: float = 0.0
    found: list[Agreement] = field(default_factory=list)

    def check(self, draft: Path) -> None:
        started = time.perf_counter()
        try:
            _check_file(draft)
            candidate = candidate_from(draft, self.spec)
            agreement = validate(self.fp32, candidate, self.pictures, self.limits, largest_batch=self.largest_batch)
            self.found.append(agreement)
        finally:
            self.seconds += time.perf_counter() - started


class _Job:
    """One fp32 file on its way to one precision."""

    def __init__(self, fp32: Path, precision: Precision, pictures: CalibrationSet, report: Report) -> None:
        self.folder = fp32.parent
        self.precision = precision
        self.pictures = pictures
        self.model = prepared(read_model(fp32, weights=True))
        # without external data, which sessions read from its file: protobuf ends at 2 GiB
        self.bare = prepared(read_model(fp32, weights=False))
        self.report = report
        self.spec = spec_of(self.model, file=str(fp32))
        if self.spec.precision is not Precision.FP32:
            raise UsageError(f"{fp32} is {self.spec.precision}; other precisions are made from the fp32 file.")
        check(self.bare, {Rule.FIXED_BATCH})

    def attempts(self) -> Iterator[Attempt]:
        """Converted models, each with more layers in a higher precision than the one before."""
        if self.precision in (Precision.FP32, Precision.TF32):
            yield self.model, {}
            return
        way = _ToInt8(self) if self.precision in (Precision.INT8, Precision.INT8_FP16) else _ToHalf(self)
        model, kept = way.convert({})
        yield model, kept
        try:
            suspects = way.suspects(model)
        except EncodeError:
            self.report(f"{self.spec.name} is too large to look for the layers that err most.")
            return
        spared: dict[str, str] = {}
        for count in (2**i for i in range(ROUNDS)):
            more = {name: reason for names in suspects[:count] for name, reason in names.items() if name not in kept}
            if not more:
                continue
            spared |= more
            self.report(f"{self.precision}: kept in a higher precision, too: {', '.join(sorted(more))}.")
            model, kept = way.convert(spared)
            if not computes_at(model, self.precision):
                self.report(f"{self.precision}: nothing of {self.spec.name} would be left in it.")
                return
            yield model, kept

    def out_of_range(self, model: ModelProto, runnable: ModelProto) -> dict[str, str]:
        """Nodes of ``model`` that cannot compute in fp16; ``runnable`` is the same with or without external data."""
        found = beyond_fp16(model, measure_ranges(runnable, self.folder, self.pictures))
        for name, reason in found.items():
            self.report(f"{self.precision}: {name} stays fp32: {reason}.")
        return found


class _ToHalf:
    """Conversion to fp16 or bf16; bf16 reaches as far as fp32, so that its ranges need no look."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._beyond = job.out_of_range(job.model, job.bare) if job.precision is Precision.FP16 else {}

    def convert(self, spared: Mapping[str, str]) -> Attempt:
        """Model with the nodes ``spared`` in fp32, and all that are kept so on evidence."""
        kept = {**spared, **self._beyond}
        return half_from(self._job.model, self._job.spec, self._job.precision, kept), kept

    def suspects(self, model: ModelProto) -> list[dict[str, str]]:
        """Nodes that add the largest errors, most first, each with those that make its inputs, and reasons.

        Rounded inputs alone can spoil a difference.
        """
        job = self._job
        blame = blame_of(job.bare, rounded(model), job.folder, job.pictures)
        nodes = {node.name: node for node in job.model.graph.node}
        made_by = {output: node.name for node in job.model.graph.node for output in node.output}
        found = []
        for name, error in blame.items():
            feeders = sorted({made_by[source] for source in nodes[name].input if source in made_by})
            found.append({name: f"adds an error of {error:.2g}", **dict.fromkeys(feeders, f"feeds {name}")})
        return found


class _ToInt8:
    """Conversion to int8, with fp32 or fp16 around it."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._calibration = job.pictures.half()
        self._first: ModelProto | None = None

    def convert(self, spared: Mapping[str, str]) -> Attempt:
        """Model whose nodes ``spared`` are not quantised, and all that are kept in a higher precision on evidence."""
        from .int8.quantize import quantize

        job = self._job
        model, _ = quantize(job.model, job.spec, self._calibration, kept=set(spared), report=job.report)
        self._first = self._first or model
        if job.precision is Precision.INT8:
            return model, dict(spared)
        model = prepared(model)
        beyond = job.out_of_range(model, model)
        return half_from(model, job.spec, job.precision, beyond), {**spared, **beyond}

    def suspects(self, model: ModelProto) -> list[dict[str, str]]:
        """Layers by how much of the whole model's error goes when they alone return to fp32, most first."""
        from .int8.blame import int8_blame

        job, int8 = self._job, self._first or model
        blame = int8_blame(job.model, int8, job.spec, self._calibration, job.report)
        return [{name: f"its int8 adds an error of {error:.2g}"} for name, error in blame.items() if error > 0]


def _check_file(path: Path) -> None:
    """Raises ModelError when the ONNX checker finds types or shapes that do not fit."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"The converted {path.name} is no valid ONNX file: {error}.") from error


def _size_of(path: Path) -> int:
    """Bytes of a model file and the data files beside it."""
    from ..engine.backends.content import external_locations

    files = [path, *(path.parent / name for name in external_locations(path))]
    return sum(file.stat().st_size for file in files)


def _silent(line: str) -> None:
    del line
