"""``package.module:factory``: whatever module a user's own function returns."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine.errors import ModelError, UsageError
from ..engine.preprocess import Preprocess
from .options import PRETRAINED, RANDOM, ExportOptions, changed_preprocess, preprocess_from_mapping, stated_preprocess
from .torch_model import TorchModel, load_state, quiet, seeded, state_from, weights_note


def load_factory(model: str, options: ExportOptions) -> TorchModel:
    """Call ``factory()``: it returns a module, or a module and its preprocessing (Preprocess, or a dict of its fields).

    The current folder is importable, as with ``python -m``. Raises UsageError when task or preprocessing are stated by
    nobody, ModelError when the factory is not found, fails or returns something else.
    """
    import torch

    if options.task is None:
        raise UsageError(f"{model} does not say what it gives: add --task classify, embed or segment.")
    factory = _imported(model)
    with quiet():
        found = _called(factory, model, options)
    module, stated = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"{model} returns {type(module).__name__}, not a torch.nn.Module.")
    if options.weights not in (PRETRAINED, RANDOM):
        path = Path(options.weights)
        load_state(module, state_from(path), path, model=model)
    return TorchModel(
        module=module,
        name=model.replace(":", "."),
        task=options.task,
        preprocess=_preprocess(stated, options, model),
        weights="as the factory made them" if options.weights == PRETRAINED else weights_note(options),
        source=model,
        output=options.output,
    )


def _imported(model: str) -> Any:
    module_name, _, name = model.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"Cannot import '{module_name}' of {model}: {error}. Run from the folder that holds it, or install it."
        ) from error
    finally:
        sys.path.remove(here)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise ModelError(f"'{module_name}' ({module.__file__}) has no function '{name}' that makes a model.")
    return factory


def _called(factory: Any, model: str, options: ExportOptions) -> Any:
    try:
        return seeded(factory, options.seed)
    except Exception as error:  # whatever the user's code raises
        raise ModelError(f"{model} failed: {type(error).__name__}: {error}.") from error


def _preprocess(stated: Any, options: ExportOptions, model: str) -> Preprocess:
    if stated is None:
        return stated_preprocess(None, options, model=model)
    if isinstance(stated, Mapping):
        stated = preprocess_from_mapping(stated, model=model)
    if not isinstance(stated, Preprocess):
        raise ModelError(f"{model} returns {type(stated).__name__} as preprocessing, not a Preprocess or a dict.")
    return changed_preprocess(stated, options)
