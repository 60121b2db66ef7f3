"""Models by name: exported on first use, kept in a cache, found again without PyTorch."""

from __future__ import annotations

import atexit
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..engine.backends.content import external_locations
from ..engine.errors import ModelError
from ..engine.plans.files import LOCK_SUFFIX, locked
from ..engine.spec import METADATA_KEY, SPEC_VERSION, ModelSpec, Precision, Task
from ..engine.version import __version__
from ..kernels.cache import cache_folder
from .options import PRETRAINED, ExportOptions
from .sources import DEMO_MODEL

GRAPH_VERSION = 1
"""Counts the changes of what an export writes: raised, it makes every cached model stale."""

_KEY_LETTERS = 8
_FAMILIES = ("timm", "torchvision")

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Request:
    """A model by name, and the choices that make its file another one."""

    model: str
    options: ExportOptions

    @property
    def file_name(self) -> str:
        """Readable, and unique by the short key at its end."""
        task = self.options.task.value if self.options.task is not None else None
        facts = {
            "model": self.model,
            "task": task,
            "normalize": self.options.normalize,
            "weights": self.options.weights,
            "versions": [__version__, SPEC_VERSION, GRAPH_VERSION],
        }
        if self.options.crop is not None:
            facts["crop"] = list(self.options.crop)
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_KEY_LETTERS]
        size = "x".join(map(str, self.options.crop)) if self.options.crop is not None else None
        words = [re.sub(r"[^A-Za-z0-9._]+", "-", self.model), size, task]
        words.append("normalized" if self.options.normalize else None)
        return "-".join([word for word in words if word] + [key]) + ".onnx"


def resolve_model(
    model: str,
    *,
    precision: Precision,
    task: Task | None = None,
    normalize: bool = False,
    weights: str = PRETRAINED,
    crop: tuple[int, int] | None = None,
    cache_dir: Path | None = None,
    report: Report | None = None,
) -> Path:
    """File of ``model`` at ``precision``: from the cache, exported or converted into it on first use.

    An ONNX file that already is at ``precision`` is taken as it is; an fp32 one is converted. Names are
    ``efficientnet_lite0``, ``timm/NAME`` and ``torchvision/NAME``; ``crop`` is another input size (height, width) than
    the model's own. ``cache_dir`` stands for VDALI_CACHE, or the user's cache folder. Raises ModelError for a missing
    file and an unknown name, AgreementError when the gate refuses the precision, UsageError for options that do not
    fit, and what ``export_model`` raises.
    """
    report = report or _silent
    options = ExportOptions(task=task, normalize=normalize, weights=weights, crop=crop)
    fp32 = _fp32_file(model, options, cache_dir, report)
    if precision is Precision.FP32:
        return fp32
    from .precision_store import resolve_precision

    return resolve_precision(fp32, precision, report=report, cache_dir=cache_dir)


def _fp32_file(model: str, options: ExportOptions, cache_dir: Path | None, report: Report) -> Path:
    """An ONNX file as it is, whatever its precision; a name's fp32 file."""
    path = Path(model)
    if path.suffix == ".onnx":
        if not path.is_file():
            raise ModelError(f"There is no model file {model}. Known names are {_names()}.")
        return path
    _check_name(model)
    request = _Request(model, options)
    folder = (cache_dir or cache_folder()) / "models"
    cached = folder / request.file_name
    if _is_whole(cached):
        return cached
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            waiting = f"Another process exports {model}: waiting for it."
            lock = folder / f"{request.file_name}{LOCK_SUFFIX}"
            stack.enter_context(locked(lock, on_wait=lambda: report(waiting)))
        except OSError as error:
            report(
                f"The cache {folder} cannot be written ({error.strerror}): {model} is exported for this run alone. "
                "Set VDALI_CACHE to a writable folder."
            )
            cached = temporary_folder() / request.file_name
        return _exported(request, cached, report)


def _exported(request: _Request, path: Path, report: Report) -> Path:
    """``path``, exported unless another process has just done it."""
    from .model import export_model
    from .write import drop_drafts

    if not _is_whole(path):
        drop_drafts(path)
        report(f"First use of {request.model}: it is exported to {path}.")
        export_model(request.model, path, request.options, report)
    return path


def _is_whole(path: Path) -> bool:
    """Whether a cached file is there, readable, and has its weights beside it."""
    if not path.is_file():
        return False
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
        text = next(entry.value for entry in model.metadata_props if entry.key == METADATA_KEY)
        ModelSpec.loads(text, file=str(path))
        return all((path.parent / location).is_file() for location in external_locations(path))
    except (OSError, DecodeError, StopIteration, ModelError):
        return False


def temporary_folder() -> Path:
    """Folder that lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="vdali-models-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _check_name(model: str) -> None:
    family, _, name = model.partition("/")
    if model == DEMO_MODEL or (family in _FAMILIES and name):
        return
    hint = f" To use a factory, export it first: vdali export {model} -o FILE.onnx --task ..." if ":" in model else ""
    raise ModelError(f"Unknown model '{model}'. Give an ONNX file that `vdali export` wrote, or {_names()}.{hint}")


def _names() -> str:
    return f"{DEMO_MODEL}, {' or '.join(f'{family}/NAME' for family in _FAMILIES)}"


def _silent(line: str) -> None:
    del line
