"""The gate: does a model at another precision give what its fp32 reference gives, picture by picture?

The reference runs in ONNX Runtime in fp32. A candidate is a file or anything that infers a batch, such as a TensorRT
engine. Files are run on the CPU as a GPU would compute them: fp16 and bf16 with every tensor really rounded
(``rounding``), int8 with Q/DQ left in place, since ONNX Runtime's fused int8 kernels saturate on CPUs without VNNI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from ..engine.errors import AgreementError, InferError, ModelError
from ..engine.spec import OUTPUT_NAMES, ModelSpec, Precision
from .agreement import Agreement, Limits, default_limits
from .calibration import CalibrationSet
from .computed import check_computed
from .kept import spec_of
from .lint import QUANTIZATION_RULES, check, read_for_lint
from .rounding import is_half, rounded
from .scores import Scores
from .session import KEEP_QDQ, Run, open_session, read_model, run_of
from .typed import copied, element_types

LARGEST_BATCH = 8
"""Most pictures per batch unless a candidate is built for more."""

REFERENCE_BATCH = 8
"""Most pictures that the reference takes at once, whatever the candidate's batch: its tensors must fit in memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is judged: ``run`` gives outputs by name, ``judged`` says how it computes."""

    name: str
    precision: Precision
    run: Run
    judged: str


def validate(
    reference: Path,
    candidate: Path | Candidate,
    pictures: CalibrationSet,
    limits: Limits | None = None,
    *,
    largest_batch: int = LARGEST_BATCH,
) -> Agreement:
    """Compare ``candidate`` with the fp32 file ``reference`` in batches of 1, 2, 3 and ``largest_batch``.

    Every picture is compared at least once, the first few in several batches. ``limits`` are those of the candidate's
    precision unless given. Raises AgreementError that names the worst picture when a limit is not kept or a value is
    NaN or infinite where the reference's is not; ModelError when a file cannot be used, a batch size does not work,
    the two do not belong together, or the reference itself is not finite for most pictures.
    """
    spec = spec_of(read_model(reference, weights=False), file=str(reference))
    judged = candidate if isinstance(candidate, Candidate) else candidate_from(candidate, spec)
    agreement = measure(reference, spec, judged, pictures, largest_batch=largest_batch)
    limits = limits or default_limits(judged.precision)
    if refusals := agreement.refusals(limits):
        raise AgreementError(
            f"{judged.name} ({judged.precision}) differs too much from its fp32 reference on {len(pictures)} pictures: "
            f"{'; '.join(refusals)}. Choose a higher precision, or state other limits if that is good enough."
        )
    return agreement


def measure(
    reference: Path, spec: ModelSpec, candidate: Candidate, pictures: CalibrationSet, *, largest_batch: int
) -> Agreement:
    """How well ``candidate`` agrees, whatever the limits; raises ModelError as ``validate`` does."""
    expected_of = open_session(reference, also=spec.raw_output or None)
    scores = Scores(spec, pictures.ids)
    sizes: list[int] = []
    for rows in batches(len(pictures), largest_batch):
        pixels = np.ascontiguousarray(pictures.pixels[rows])
        got = _outputs(candidate, spec, pixels)
        for start in range(0, len(rows), REFERENCE_BATCH):
            part = slice(start, start + REFERENCE_BATCH)
            scores.add(rows[part], {name: value[part] for name, value in got.items()}, expected_of(pixels[part]))
        sizes.append(len(rows))
    return scores.agreement(candidate.precision, candidate.judged, sizes, pictures.content)


def batches(count: int, largest: int) -> Iterator[NDArray[np.intp]]:
    """Picture numbers batch by batch: the largest, 1, 2, 3, then the largest again until all have been seen.

    A small batch after a big one shows rows left over from that. Numbers start again at 0 when they run out.
    """
    start = 0
    for size in (largest, 1, 2, 3):
        yield (np.arange(size) + start) % count
        start += size
    while start < count:
        yield (np.arange(largest) + start) % count
        start += largest


def candidate_from(path: Path, reference: ModelSpec) -> Candidate:
    """Candidate from a vdali file.

    Raises ModelError when it cannot be used, is another model than ``reference``, computes nothing at the precision
    that it states, or holds Q/DQ that TensorRT would refuse or misread.
    """
    model = read_for_lint(path)
    spec = spec_of(model, file=str(path))
    for what in ("task", "preprocess", "normalize"):
        if getattr(spec, what) != getattr(reference, what):
            raise ModelError(
                f"{path} and its reference differ in {what}: {getattr(spec, what)} and {getattr(reference, what)}. "
                "Export the file again from that reference."
            )
    check(model, QUANTIZATION_RULES)
    check_computed(model, spec.precision, file=str(path))
    quantised = any(node.op_type == "DequantizeLinear" for node in model.graph.node)
    ways = ["Q/DQ in fp32"] if quantised else []
    if is_half(model):
        if not _has_type(model, TensorProto.BFLOAT16):
            run_of(str(path), path)  # the file as it is must load, too; there are no bf16 kernels on a CPU
        model = rounded(model)
        ways.append("fp32 arithmetic, half-precision tensors rounded")
    content = _exposed(model, spec.raw_output).SerializeToString()
    run = run_of(content, path, config=KEEP_QDQ if quantised else None)
    return Candidate(path.name, spec.precision, run, f"onnxruntime CPU, {' and '.join(ways) or 'fp32'}")


def _has_type(model: ModelProto, kind: int) -> bool:
    return any(found == kind for found in element_types(model).values())


def _exposed(model: ModelProto, raw: str) -> ModelProto:
    """Model with its raw output among the outputs, where it has that tensor."""
    kind = element_types(model).get(raw)
    if not kind or any(value.name == raw for value in model.graph.output):
        return model
    copy = copied(model)
    copy.graph.output.append(helper.make_tensor_value_info(raw, kind, None))
    return copy


def _outputs(candidate: Candidate, spec: ModelSpec, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
    """Outputs for a batch; raises ModelError when it fails, or has another number of rows."""
    count = len(pixels)
    try:
        outputs = candidate.run(pixels)
    except InferError as error:
        raise ModelError(f"{candidate.name} fails on a batch of {count}: {error}") from error
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
        raise ModelError(
            f"{candidate.name} fails on a batch of {count}: {' '.join(str(error).split())[:300]}"
        ) from error
    for name in OUTPUT_NAMES[spec.task]:
        if name not in outputs or outputs[name].shape[:1] != (count,):
            found = list(outputs[name].shape) if name in outputs else "no"
            raise ModelError(f"{candidate.name} gives {found} '{name}' for a batch of {count}. Export it again.")
    return outputs
