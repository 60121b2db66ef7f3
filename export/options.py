"""What a user may say about an export; nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..engine.errors import ModelError, UsageError
from ..engine.preprocess import ColorOrder, Exif, Interpolation, PadPosition, Preprocess, ResizeMode
from ..engine.spec import Task

PRETRAINED = "pretrained"
RANDOM = "random"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Choices of an export; ``None`` means what the model itself says.

    ``weights`` is ``pretrained``, ``random`` (seeded by ``seed``) or a file. ``resize`` and ``crop`` (the model's input
    size) are (height, width) in pixels, ``mean`` and ``std`` are of 0..1, ``fill`` is an RGB level of 0..255.
    ``output`` names the tensor (ONNX) or the dict key (PyTorch) to use, ``classes`` a file of class names, one a line.
    ``label_offset`` leading columns of the logits are dropped (1 for models whose class 0 is "background").
    ``normalize`` L2-normalises embeddings inside the graph. ``data_over`` is the size in bytes above which weights go
    into a file beside the ONNX file (protobuf ends at 2 GiB).
    """

    task: Task | None = None
    weights: str = PRETRAINED
    seed: int = 0
    resize: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    mode: ResizeMode | None = None
    interpolation: Interpolation | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    fill: tuple[int, int, int] | None = None
    pad: PadPosition | None = None
    exif: Exif | None = None
    color_order: ColorOrder | None = None
    output: str | None = None
    classes: Path | None = None
    label_offset: int = 0
    normalize: bool = False
    data_over: int = 1_900_000_000

    def __post_init__(self) -> None:
        if self.label_offset < 0:
            raise UsageError(f"The label offset must be >= 0, got {self.label_offset}.")
        if self.normalize and self.task not in (None, Task.EMBED):
            raise UsageError(f"Only embeddings are normalised, the task is {self.task}. Leave --normalize out.")
        if self.label_offset and self.task not in (None, Task.CLASSIFY):
            raise UsageError(f"Only classifiers have a label offset, the task is {self.task}. Leave it out.")


_OVERRIDES = ("mode", "interpolation", "mean", "std", "fill", "pad", "exif", "color_order")


def changed_preprocess(base: Preprocess, options: ExportOptions) -> Preprocess:
    """``base`` with what the options say instead; another crop alone keeps the share of the resized picture it takes.

    Raises ModelError when the two do not fit together.
    """
    changes: dict[str, Any] = {
        name: getattr(options, name) for name in _OVERRIDES if getattr(options, name) is not None
    }
    if options.crop is not None:
        changes["size"] = options.crop
        changes["resize"] = tuple(
            wide * new // old for wide, new, old in zip(base.resize, options.crop, base.size, strict=True)
        )
    if options.resize is not None:
        changes["resize"] = options.resize
    return replace(base, **changes)


def stated_preprocess(size: tuple[int, int] | None, options: ExportOptions, *, model: str) -> Preprocess:
    """Preprocessing of a model that states none itself: the options must.

    ``size`` is the input size (height, width) where the model fixes it. Raises UsageError that names what is missing:
    a guessed mean or std costs accuracy without a word.
    """
    size = options.crop or size
    values = {"--crop": size, "--mean": options.mean, "--std": options.std}
    missing = [name for name, value in values.items() if value is None]
    if missing or size is None:
        raise UsageError(
            f"{model} does not say how its pictures are prepared: give {' and '.join(missing)} "
            "(--crop in pixels; mean and std of levels 0..1, such as 0.485,0.456,0.406 and 0.229,0.224,0.225)."
        )
    mode = options.mode or ResizeMode.SHORTER
    square = size[0] == size[1]
    if options.resize is None and mode is ResizeMode.SHORTER and not square:
        raise UsageError(f"{model} takes {size[0]} x {size[1]} pixels: give --resize, or --mode squash.")
    return changed_preprocess(Preprocess(size=size, resize=options.resize or size, mode=mode), options)


def preprocess_from_mapping(values: Mapping[str, Any], *, model: str) -> Preprocess:
    """Spec from the dict that a factory returns: Preprocess's field names; only ``size`` must be there.

    Raises ModelError on an unknown name or a bad value.
    """
    known = {field.name for field in fields(Preprocess)}
    unknown = sorted(set(values) - known)
    if unknown or "size" not in values:
        problem = f"has no field {', '.join(unknown)}" if unknown else "needs a size"
        raise ModelError(
            f"The preprocessing that {model} returns {problem}. Its fields are {', '.join(sorted(known))}."
        )
    size = _both(values["size"])
    defaults = Preprocess(size=(1, 1), resize=(1, 1)).to_json()
    return Preprocess.from_json({**defaults, **values, "size": size, "resize": _both(values.get("resize", size))})


def _both(size: Any) -> Any:
    return (size, size) if isinstance(size, int) else size


def class_names(options: ExportOptions, known: tuple[str, ...] | None, count: int | None) -> tuple[str, ...] | None:
    """Names of the ``count`` classes: from the file the user gave, else ``known`` where it fits.

    Raises ModelError when the file cannot be read or holds another number of lines.
    """
    if options.classes is None:
        return known if count is None or known is None or len(known) == count else None
    try:
        names = tuple(options.classes.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"Cannot read class names from {options.classes}: {error}.") from error
    if count is not None and len(names) != count:
        raise ModelError(
            f"{options.classes} has {len(names)} lines, the model has {count} classes"
            f"{f' after dropping {options.label_offset}' if options.label_offset else ''}. Give one name a line."
        )
    return names
