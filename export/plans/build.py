"""ONNX file to TensorRT plan: one code path for ``tensorrt`` 11.x and ``tensorrt_rtx`` 1.x.

Precision is in the graph (both are always strongly typed); only TF32 is a switch of the builder. The batch is the one
dynamic dimension.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.errors import ModelError, VdaliError
from ...engine.gpu_probe import probe_gpu
from ...engine.plans.files import write_atomically
from ...engine.plans.flavour import ERRORS, Flavour, Message
from ...engine.plans.options import PlanOptions, check_options
from ..lint import check, read_for_lint
from .config import add_batch_profile, aim, attach_timing_cache, configure, widen
from .progress import OnProgress, PhaseTracker, progress_monitor

if TYPE_CHECKING:
    import tensorrt as trt

BUILT_NOT_RUN = "built, not run"
"""State of every plan until it has been compared with its reference on a GPU."""

_ADVICE = "Change these parts of the model, or run it with ONNX Runtime."
_REPEATED = "ModelImporter.cpp:"
"""Log lines that say again what the parser's list of errors says."""

_NO_DRIVER = "[checkMacros.cpp::catchCudaError"
"""Line that TensorRT-RTX adds to every error on a machine without a driver, whatever the error is."""


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A serialized engine, what its builder said, and the seconds it took. ``state`` says that nobody has run it."""

    data: bytes
    messages: tuple[Message, ...]
    build_s: float
    state: str = BUILT_NOT_RUN


def build_plan(
    onnx: Path,
    options: PlanOptions,
    *,
    flavour: Flavour,
    progress: OnProgress | None = None,
    expected_s: float | None = None,
) -> BuiltPlan:
    """Build a plan in memory; one build at a time in a process.

    External data is found next to the file. ``expected_s`` is passed on to ``progress``, whose exceptions cancel the
    build. Raises ModelError with TensorRT's own words, UsageError and DeviceError for options that do not fit.
    """
    check_options(options, flavour, probe_gpu())
    if not onnx.is_file():
        raise ModelError(f"No model file at {onnx}. Give an ONNX file that `vdali export` wrote.")
    started = time.perf_counter()
    tracker = PhaseTracker(progress or (lambda _: None), expected_s)
    with flavour.log.slice() as messages:
        data = _build(flavour.trt, flavour, onnx, options, tracker, messages)
        return BuiltPlan(data, tuple(messages), time.perf_counter() - started)


def _build(
    trt: Any, flavour: Flavour, onnx: Path, options: PlanOptions, tracker: PhaseTracker, messages: list[Message]
) -> bytes:
    builder = trt.Builder(flavour.log.logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, flavour.log.logger)
    _parse(parser, network, onnx, flavour.title, messages)
    check(read_for_lint(onnx))  # what the parser takes for something else without a word
    config = builder.create_builder_config()
    configure(trt, config, options)
    timing_cache = None
    if flavour.is_rtx:
        aim(trt, config, options.targets)
    else:
        widen(trt, config, options)
        timing_cache = attach_timing_cache(config, options.timing_cache) if options.timing_cache else None
    add_batch_profile(builder, config, network, options.batch, onnx)
    monitor = progress_monitor(trt, tracker)
    config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    if tracker.error is not None:
        raise tracker.error
    if plan is None:
        said = _errors_of(messages)
        raise ModelError("\n".join([f"{flavour.title} cannot build a plan from {onnx}:", *said, _ADVICE]))
    if timing_cache is not None and options.timing_cache is not None:
        try:
            write_atomically(options.timing_cache, bytes(config.get_timing_cache().serialize()))
        except VdaliError as error:  # the plan is worth more
            messages.append(("warning", str(error)))
    return bytes(plan)


def _parse(
    parser: trt.OnnxParser, network: trt.INetworkDefinition, onnx: Path, title: str, messages: Sequence[Message]
) -> None:
    """Read the file into the network; the absolute path makes TensorRT look for external data next to it."""
    if not parser.parse_from_file(str(onnx.absolute())):
        refused = []
        for index in range(parser.num_errors):
            error = parser.get_error(index)
            place = f"[{error.node_operator()}: {error.node_name()}] " if error.node_operator() else ""
            refused.append(place + _without_noise(error.desc()))
        told = "\n".join(refused)
        more = (text for text in _errors_of(messages) if not text.startswith(_REPEATED) and text not in told)
        raise ModelError("\n".join([f"{title} refuses {onnx}:", told, *more, _ADVICE]))
    if network.num_outputs == 0:  # the parser takes some text files for an empty model
        raise ModelError(f"{onnx} is not an ONNX model with outputs. Give a file that `vdali export` wrote.")


def _errors_of(messages: Sequence[Message]) -> list[str]:
    """What TensorRT logged as errors, each once, in order."""
    texts = dict.fromkeys(_without_noise(text) for severity, text in messages if severity in ERRORS)
    return [text for text in texts if text]


def _without_noise(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(_NO_DRIVER))
