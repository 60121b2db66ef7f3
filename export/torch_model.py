"""A PyTorch module and what is known of it, before export; how its weights are found."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import MissingExtraError, ModelError
from ..engine.preprocess import Preprocess
from ..engine.spec import Task
from .options import PRETRAINED, RANDOM, ExportOptions

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A module that takes float32 [n, 3, height, width], and its spec so far.

    ``output`` is the key of its output to use, where it gives a dict or a tuple.
    """

    module: torch.nn.Module
    name: str
    task: Task
    preprocess: Preprocess
    weights: str
    source: str
    classes: tuple[str, ...] | None = None
    output: str | None = None


def need(*packages: str, extra: str, purpose: str) -> None:
    """Import packages of an extra quietly; raises MissingExtraError for the first that is not installed."""
    with quiet():
        for package in packages:
            try:
                importlib.import_module(package)
            except ModuleNotFoundError as error:
                if error.name != package:
                    raise
                raise MissingExtraError(package, extra, purpose) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings, log lines or prints of PyTorch and its company: what matters is checked or reported."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def no_stdout() -> Iterator[None]:
    """Nothing on file descriptor 1: PyTorch's tracing exporter logs whole graphs there from C++ when it fails.

    Stdout may be carrying a JSON document, and PyTorch 2.14 has no switch for this log (it tests a function, not its
    result).
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def seeded(build: Callable[[], torch.nn.Module], seed: int) -> torch.nn.Module:
    """Module with random weights that depend on ``seed`` alone; the caller's random state stays as it is."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def downloaded(build: Callable[[], torch.nn.Module], *, model: str, host: str) -> torch.nn.Module:
    """Module with pretrained weights, from the local cache or ``host``; raises ModelError without a network."""
    try:
        return build()
    except Exception as error:  # network libraries share no base but Exception
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"Cannot get the pretrained weights of {model} from {host}: {type(error).__name__}: {reason}. "
            "Without a network, give `--weights FILE` (a state dict), or `--weights random` for a test."
        ) from error


def state_from(path: Path) -> dict[str, Any]:
    """State dict of a .pth, .pt, .bin or .safetensors file, looked for inside the usual wrappers.

    Raises ModelError when the file is no state dict. Nothing but tensors is unpickled.
    """
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's errors share no base but Exception
        raise ModelError(f"Cannot read weights from {path}: {' '.join(str(error).split())[:300]}.") from error
    for wrapper in ("state_dict", "model", "model_state_dict", "state_dict_ema", "model_ema"):
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ModelError(f"{path} holds {type(state).__name__}, not a state dict. Save `module.state_dict()`.")
    return {name.removeprefix("module."): value for name, value in state.items()}


def load_state(module: torch.nn.Module, state: Mapping[str, Any], path: Path, *, model: str) -> None:
    """Fill ``module``, every weight of it and nothing else; raises ModelError that names what does not fit."""
    try:
        module.load_state_dict(dict(state), strict=True)
    except RuntimeError as error:
        raise ModelError(f"The weights in {path} do not fit {model}: {' '.join(str(error).split())[:400]}.") from error


def weights_note(options: ExportOptions) -> str:
    """What the spec says of the weights."""
    if options.weights == RANDOM:
        return f"random (seed {options.seed})"
    return PRETRAINED if options.weights == PRETRAINED else Path(options.weights).name
