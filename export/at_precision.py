"""Exports and judgements at any precision, one call each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from ..engine.errors import AgreementError, UsageError
from ..engine.spec import METADATA_KEY, ModelSpec, Precision
from .agreement import Agreement, Limits, default_limits
from .calibration import Input, calibration_set
from .kept import spec_of
from .model import export_model
from .options import ExportOptions
from .precision import export_precision
from .precision_store import precision_file
from .session import read_model
from .store import resolve_model
from .validate import validate

Report = Callable[[str], None]


def export_at_precision(
    model: str,
    out: Path,
    options: ExportOptions,
    precision: Precision,
    images: Input | Sequence[Input] | None,
    report: Report,
) -> ModelSpec:
    """Write ``model`` to ``out`` at ``precision``; other precisions than fp32 are made and judged on ``images``.

    ``model`` may be an exported fp32 file too. Raises what ``export_model`` and ``export_precision`` raise.
    """
    if precision is Precision.FP32:
        if images is not None:
            raise UsageError("An fp32 file is compared with its source, not judged on pictures. Leave --calibrate out.")
        return export_model(model, out, options, report)
    _check_words(model, out, options)
    with tempfile.TemporaryDirectory(prefix="vdali-export-") as folder:
        fp32 = Path(folder) / "fp32.onnx"
        if _is_exported(model):
            fp32 = Path(model)
        else:
            export_model(model, fp32, options, report)
        spec = spec_of(read_model(fp32, weights=False), file=str(fp32))
        pictures = calibration_set(images, spec)
        report(f"{precision} is made and judged on {pictures.description}.")
        made = export_precision(fp32, out, precision, pictures=pictures, report=report)
    report(f"{made.agreement}; {len(made.kept)} layers kept in a higher precision; {made.seconds:.1f} s")
    return replace(spec, precision=precision)


def validate_precision(
    model: str,
    precision: Precision,
    images: Input | Sequence[Input] | None,
    *,
    reference: str | None,
    picture_limit: int,
    limits: Mapping[str, float | None],
    report: Report,
) -> Agreement:
    """Judge ``model`` at ``precision`` on ``images``; ``limits`` replace the precision's own where not None.

    Raises AgreementError that names the worst picture, UsageError when a file at another precision comes without its
    fp32 ``reference`` or a limit is stated that its task has no number for, and what ``resolve_model`` raises.
    """
    fp32 = Path(reference) if reference else resolve_model(model, precision=Precision.FP32, report=report)
    spec = spec_of(read_model(fp32, weights=False), file=str(fp32))
    if spec.precision is not Precision.FP32:
        raise UsageError(
            f"{fp32} is {spec.precision}. Name the fp32 file that it was made from: --reference FILE.onnx."
        )
    given = {name: value for name, value in limits.items() if value is not None}
    stated = replace(default_limits(precision), **given)
    candidate = _candidate(model, precision, stated, report)
    pictures = calibration_set(images, spec, limit=picture_limit)
    report(f"{candidate} against {fp32} on {pictures.description}.")
    agreement = validate(fp32, candidate, pictures, stated)
    unheard = [name for name in given if getattr(agreement, name) is None]
    if unheard:
        raise UsageError(f"{spec.name} is to {spec.task}: nothing measures {', '.join(unheard)}. Leave that limit out.")
    return agreement


def _candidate(model: str, precision: Precision, limits: Limits, report: Report) -> Path:
    """File of ``model`` at ``precision``; where its own limits refuse it, one made under ``limits``."""
    try:
        return resolve_model(model, precision=precision, report=report)
    except AgreementError:
        if limits == default_limits(precision):
            raise
    fp32 = resolve_model(model, precision=Precision.FP32, report=report)
    spec = spec_of(read_model(fp32, weights=False), file=str(fp32))
    file = precision_file(fp32, precision, calibration_set(None, spec), limits=limits, report=report)
    if file.refusal:
        raise AgreementError(file.refusal)
    return file.path


def file_at_precision(model: str, precision: Precision | None, report: Report) -> Path:
    """File of ``model`` at ``precision``; None: an ONNX file as it is, and fp32 of a known name.

    Raises UsageError for a file at another precision, and what ``resolve_model`` raises.
    """
    path = resolve_model(model, precision=precision or Precision.FP32, report=report)
    if precision is Precision.FP32:
        found = spec_of(read_model(path, weights=False), file=str(path)).precision
        if found is not precision:
            raise UsageError(f"{path} is {found}, but {precision} was asked for. Name the file that it was made from.")
    return path


def _check_words(model: str, out: Path, options: ExportOptions) -> None:
    """Raises UsageError for what would be overwritten or would go unheard."""
    if out.suffix != ".onnx":
        raise UsageError(f"The output file must end in .onnx, got {out}.")
    if not _is_exported(model):
        return
    if out.exists() and out.samefile(model):
        raise UsageError(f"{out} is the fp32 model itself and would be overwritten. Choose another -o.")
    plain = ExportOptions()
    stated = [field.name for field in fields(options) if getattr(options, field.name) != getattr(plain, field.name)]
    if stated:
        raise UsageError(
            f"{model} is exported already, so {', '.join(stated)} would change nothing. Leave that out, or export its "
            "source again."
        )


def _is_exported(model: str) -> bool:
    path = Path(model)
    if path.suffix != ".onnx" or not path.is_file():
        return False
    return any(entry.key == METADATA_KEY for entry in read_model(path, weights=False).metadata_props)
