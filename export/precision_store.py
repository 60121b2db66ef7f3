"""Files of known models at other precisions: converted and gated once, kept in the cache with the gate's findings."""

from __future__ import annotations

import glob
import hashlib
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..engine.backends.content import model_content
from ..engine.errors import AgreementError, ModelError
from ..engine.plans.files import LOCK_SUFFIX, locked, write_atomically
from ..engine.spec import Precision
from ..engine.version import __version__
from ..kernels.cache import cache_folder
from .agreement import Limits, default_limits
from .calibration import CalibrationSet, calibration_set
from .kept import spec_of
from .precision import export_precision
from .session import read_model
from .store import temporary_folder
from .write import drop_drafts

CONVERSION_VERSION = 2
"""Counts the changes of what a conversion writes: raised, it makes every cached file stale."""

RECORD_SUFFIX = ".json"
_KEY_LETTERS = 12
_TOOLS = ("onnx", "onnxruntime-gpu", "numpy")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PrecisionFile:
    """A model at one precision: ``path`` is its ONNX file, ``found`` the record of the conversion and its gate.

    ``hit`` says that it came from the cache. A model that the gate refused has a record too, with ``refusal``, so that
    the long search for layers to keep is not repeated; its ``path`` does not exist.
    """

    path: Path
    hit: bool
    found: dict[str, Any]

    @property
    def refusal(self) -> str:
        """Why the gate refused it; empty for a usable file."""
        return str(self.found.get("refusal", ""))


def precision_file(
    fp32: Path,
    precision: Precision,
    pictures: CalibrationSet,
    *,
    limits: Limits | None = None,
    report: Report,
    cache_dir: Path | None = None,
) -> PrecisionFile:
    """``fp32`` at ``precision``, from the cache when model, pictures, limits and tools are the same, else made now.

    A cache that cannot be written is told of and does no harm. Raises ModelError for a model that cannot be converted
    and VdaliError when the disk is full.
    """
    facts = _facts(fp32, precision, pictures, limits or default_limits(precision))
    folder = (cache_dir or cache_folder()) / "models"
    path = folder / f"{fp32.stem}-{precision}-{_digest(facts)}.onnx"
    waiting = f"Another process converts {fp32.stem} to {precision}: waiting for it."
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass  # a folder that cannot be written shows here, before minutes of converting
            stack.enter_context(locked(path.with_name(path.name + LOCK_SUFFIX), on_wait=lambda: report(waiting)))
        except OSError as error:
            report(
                f"The cache {folder} cannot be written ({error.strerror}): {fp32.stem} at {precision} is kept for this "
                "run alone. Set VDALI_CACHE to a writable folder."
            )
            path = path if _record_of(path) is not None else temporary_folder() / path.name
        drop_drafts(path)
        found = _record_of(path)
        if found is not None:
            return PrecisionFile(path, True, found)
        return PrecisionFile(path, False, _made(fp32, path, precision, pictures, limits, facts, report))


def resolve_precision(model: Path, precision: Precision, *, report: Report, cache_dir: Path | None = None) -> Path:
    """``model`` itself where it is at ``precision``, else the last conversion in the cache, else one made now.

    A conversion made here is judged on the demo photos; ``make engines`` and ``vdali validate`` take others. Raises
    AgreementError when the gate refuses it, and what ``precision_file`` raises.
    """
    spec = spec_of(read_model(model, weights=False), file=str(model))
    if spec.precision is precision:
        return model
    newest = newest_precision_file(model, precision, cache_dir=cache_dir)
    if newest is not None:
        return newest.path
    pictures = calibration_set(None, spec)
    report(f"{model.stem} at {precision}: converted and judged on {pictures.description}.")
    file = precision_file(model, precision, pictures, report=report, cache_dir=cache_dir)
    if file.refusal:
        raise AgreementError(file.refusal)
    report(f"{model.stem} at {precision}: {file.found['agreement_text']}.")
    return file.path


def newest_precision_file(fp32: Path, precision: Precision, *, cache_dir: Path | None = None) -> PrecisionFile | None:
    """The last usable file of ``fp32`` at ``precision`` in the cache, whatever pictures it was judged on.

    Model, tools and limits are those of today.
    """
    wanted = _facts(fp32, precision, None, default_limits(precision))
    folder = (cache_dir or cache_folder()) / "models"
    records = sorted(
        folder.glob(f"{glob.escape(fp32.stem)}-{precision}-*.onnx{RECORD_SUFFIX}"),
        key=lambda path: path.stat().st_mtime,
    )
    for record in reversed(records):
        path = record.with_suffix("")
        found = _record_of(path)
        if found is not None and not found.get("refusal") and {**found["facts"], "pictures": None} == wanted:
            return PrecisionFile(path, True, found)
    return None


def _made(
    fp32: Path,
    path: Path,
    precision: Precision,
    pictures: CalibrationSet,
    limits: Limits | None,
    facts: dict[str, Any],
    report: Report,
) -> dict[str, Any]:
    found: dict[str, Any] = {"facts": facts, "pictures": pictures.to_json()}
    try:
        made = export_precision(fp32, path, precision, pictures=pictures, limits=limits, report=report)
        found |= {**made.to_json(), "agreement_text": str(made.agreement), "content": model_content(path)}
    except AgreementError as error:
        found["refusal"] = str(error)
    write_atomically(_record_path(path), json.dumps(found, indent=1).encode())
    return found


def _record_of(path: Path) -> dict[str, Any] | None:
    """Record of a whole file, or of a refusal; None where there is none or the file is not the recorded one."""
    try:
        found: dict[str, Any] = json.loads(_record_path(path).read_bytes())
        whole = bool(found.get("refusal")) or model_content(path) == found["content"]
        whole = whole and isinstance(found["facts"], dict)
    except (OSError, ValueError, KeyError, AttributeError, ModelError):
        return None
    return found if whole else None


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + RECORD_SUFFIX)


def _facts(fp32: Path, precision: Precision, pictures: CalibrationSet | None, limits: Limits) -> dict[str, Any]:
    """What makes a conversion another one; the model's content holds its preprocessing."""
    return {
        "model content": model_content(fp32),
        "precision": precision.value,
        "pictures": pictures.content if pictures is not None else None,
        "limits": asdict(limits),
        "versions": {
            "vdali": __version__,
            "conversion": CONVERSION_VERSION,
            **{name: version(name) for name in _TOOLS},
        },
    }


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_KEY_LETTERS]
