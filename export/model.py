"""Any model to a vdali file: load, take the core, fold, write, verify, publish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.errors import UsageError
from ..engine.spec import ModelSpec, Task
from .options import ExportOptions, class_names

if TYPE_CHECKING:
    from .core import Core


def export_model(
    model: str, out: Path, options: ExportOptions | None = None, report: Callable[[str], None] | None = None
) -> ModelSpec:
    """Write ``model`` to ``out`` as an fp32 ONNX file with pre- and post-processing folded in; returns its spec.

    ``model`` is a name, a factory or a file, as ``sources.KNOWN_MODELS`` lists them. The written file is compared with
    its source in batches of 1, 2, 3 and 8 before it takes its place at ``out``: nothing is left there otherwise.
    ``report`` takes lines for people.

    Raises UsageError for options that do not fit, ModelError for a model that cannot be exported, AgreementError when
    the file differs from its source, MissingExtraError without PyTorch, VdaliError when ``out`` cannot be written.
    """
    options, report = options or ExportOptions(), report or _silent
    if out.suffix != ".onnx":
        raise UsageError(f"The output file must end in .onnx, got {out}.")
    if out.exists() and Path(model).exists() and out.samefile(model):
        raise UsageError(f"{out} is the model itself and would be overwritten. Choose another -o.")
    from .fold import class_count, fold
    from .sources import core_of
    from .verify import verify
    from .write import write_model

    core = core_of(model, options, report)
    _check_task(core.task, model, options)
    core = replace(core, classes=_names_of(core, options, class_count(core)))
    proto, spec = fold(core)

    def check(draft: Path) -> None:
        agreement = verify(draft, spec, core)
        batches = ", ".join(map(str, agreement.batches))
        report(f"Verified against the source in batches of {batches}: lowest agreement {agreement.lowest:.7f}.")

    write_model(proto, out, check=check, data_over=options.data_over)
    return spec


def _check_task(task: Task, model: str, options: ExportOptions) -> None:
    """Options that belong to one task, where the task was the model's own choice."""
    if options.normalize and task is not Task.EMBED:
        raise UsageError(
            f"Only embeddings are normalised; {model} is to {task}. Leave --normalize out, or add --task embed."
        )
    if options.label_offset and task is not Task.CLASSIFY:
        raise UsageError(f"Only classifiers have a label offset; {model} is to {task}. Leave it out.")


def _names_of(core: Core, options: ExportOptions, count: int | None) -> tuple[str, ...] | None:
    if core.task is not Task.EMBED:
        return class_names(options, core.classes, count)
    if options.classes is not None:
        raise UsageError("An embedding has no classes. Leave --classes out.")
    return None


def _silent(line: str) -> None:
    del line
