"""``timm/NAME``: any model of timm, with the preprocessing that timm states for it."""

from __future__ import annotations

import math
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import ModelError, UsageError
from ..engine.preprocess import Interpolation, Preprocess, ResizeMode
from ..engine.spec import Task
from .hub import check_weights_at_hand, offline_unless_reachable
from .options import PRETRAINED, RANDOM, ExportOptions, changed_preprocess
from .torch_model import TorchModel, downloaded, load_state, quiet, seeded, state_from, weights_note

if TYPE_CHECKING:
    import torch

_MODES = {"center": ResizeMode.SHORTER, "squash": ResizeMode.SQUASH, "border": ResizeMode.LONGEST}


def load_timm(name: str, options: ExportOptions) -> TorchModel:
    """Classifier, or pooled features (task embed), of timm model ``name``.

    Raises ModelError for a name that timm does not know, weights that do not fit, or preprocessing outside the spec.
    """
    import timm

    if options.task is Task.SEGMENT:
        raise UsageError("timm models classify or embed. Use torchvision/NAME, a factory or an ONNX file to segment.")
    if not timm.is_model(name):
        close = ", ".join(get_close_matches(name.split(".")[0], timm.list_models(), n=5)) or "nothing"
        raise ModelError(f"timm has no model '{name}'. Near it: {close}. All are in timm.list_models().")
    found = timm.get_pretrained_cfg(name)
    assert found is not None
    config = found.to_dict()  # type: ignore[no-untyped-call]
    task = options.task or (Task.CLASSIFY if config["num_classes"] else Task.EMBED)
    sizes = {"img_size": options.crop} if options.crop and config.get("fixed_input_size") else {}
    with quiet():
        module = _build(name, options, config, sizes)
        classes = _class_names(module) if task is Task.CLASSIFY else None
        if task is Task.EMBED:
            module.reset_classifier(0)  # type: ignore[operator]
    tag = config.get("tag")
    note = weights_note(options)
    return TorchModel(
        module=module,
        name=name,
        task=task,
        preprocess=changed_preprocess(_preprocess(config, name, options.crop), options),
        weights=f"{note} ({tag})" if note == PRETRAINED and tag else note,
        source=f"timm/{name} (timm {timm.__version__})",
        classes=classes,
    )


def _build(name: str, options: ExportOptions, config: dict[str, Any], sizes: dict[str, Any]) -> torch.nn.Module:
    import timm

    if options.weights == PRETRAINED:
        with offline_unless_reachable():
            check_weights_at_hand(f"timm/{name}", config.get("hf_hub_id"), config.get("hf_hub_filename"))
            return downloaded(
                lambda: timm.create_model(name, pretrained=True, **sizes), model=f"timm/{name}", host="huggingface.co"
            )
    if options.weights == RANDOM:
        return seeded(lambda: timm.create_model(name, pretrained=False, **sizes), options.seed)
    path = Path(options.weights)
    state = state_from(path)
    head = state.get(f"{config.get('classifier')}.weight")
    count = {} if head is None else {"num_classes": head.shape[0]}
    module: torch.nn.Module = timm.create_model(name, pretrained=False, **count, **sizes)
    load_state(module, state, path, model=f"timm/{name}")
    return module


def _preprocess(config: dict[str, Any], name: str, size: tuple[int, int] | None) -> Preprocess:
    """Spec of timm's ``transforms_imagenet_eval``, for ``size`` or the default size (not the larger test size)."""
    from timm.data.config import resolve_data_config

    sizes = {"input_size": (3, *size)} if size is not None else {}
    data = resolve_data_config(sizes, pretrained_cfg=config)  # type: ignore[no-untyped-call]
    _, height, width = data["input_size"]
    mode = _MODES.get(data["crop_mode"])
    if mode is None or data["interpolation"] not in [value.value for value in Interpolation]:
        raise ModelError(
            f"timm prepares pictures for {name} with crop mode {data['crop_mode']} and {data['interpolation']} "
            f"interpolation; vdali knows {', '.join(_MODES)} and {', '.join(Interpolation)}. Export another model."
        )
    if mode is ResizeMode.SHORTER and height != width:
        raise ModelError(f"{name} takes {height} x {width} pixels cropped from the centre. Use --mode squash.")
    mean = tuple(data["mean"])
    return Preprocess(
        size=(height, width),
        resize=(math.floor(height / data["crop_pct"]), math.floor(width / data["crop_pct"])),
        mode=mode,
        interpolation=Interpolation(data["interpolation"]),
        mean=mean,
        std=tuple(data["std"]),
        fill=tuple(round(255 * level) for level in mean) if mode is ResizeMode.LONGEST else (0, 0, 0),
    )


def _class_names(module: torch.nn.Module) -> tuple[str, ...] | None:
    """Names of the ImageNet set that the number of classes tells; None for other numbers."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset

    from .torchvision_models import imagenet_names

    subset = infer_imagenet_subset(module)
    if subset is None:
        return None
    return imagenet_names() if subset == "imagenet-1k" else tuple(ImageNetInfo(subset).label_descriptions())
