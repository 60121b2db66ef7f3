"""The two TensorRTs behind one name: ``tensorrt`` (11.x) and ``tensorrt_rtx`` (1.x), probed before they are touched.

Both packages have nearly the same API, so everything else takes a Flavour and uses its module ``trt``. Only code that
asks for what TensorRT-RTX alone has calls the module ``rtx``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceError, MissingExtraError, UsageError
from ..gpu_probe import probe_gpu

TENSORRT = "tensorrt"
TENSORRT_RTX = "tensorrt_rtx"
FLAVOURS = (TENSORRT, TENSORRT_RTX)

TITLES = {TENSORRT: "TensorRT", TENSORRT_RTX: "TensorRT-RTX"}
_EXTRAS = {TENSORRT: "tensorrt", TENSORRT_RTX: "rtx"}
_SUPPORTED_MAJOR = {TENSORRT: 11, TENSORRT_RTX: 1}
_DISTRIBUTIONS = ("{}", "{}_cu13", "{}_cu12")

Message = tuple[str, str]
"""Severity (``info``, ``warning``, ``error``, ``internal_error``) and text."""

ERRORS = ("error", "internal_error")


class MessageLog:
    """What one TensorRT module said; each build takes its own slice.

    One per module and process: the first logger that is registered serves every later builder and runtime. Outside
    slices only the last messages are kept, since an engine may run for weeks.
    """

    def __init__(self, trt: Any) -> None:
        self._slice: list[Message] | None = None
        self._latest: deque[Message] = deque(maxlen=100)
        self._lock = threading.Lock()
        self.logger = _logger(trt, self._add)

    @contextmanager
    def slice(self) -> Iterator[list[Message]]:
        """The list that fills up with the messages of the block; other threads' blocks wait."""
        with self._lock:
            self._latest.clear()
            messages: list[Message] = []
            self._slice = messages
            try:
                yield messages
            finally:
                self._slice = None

    def last_error(self) -> str:
        """The latest error, and with it all messages so far are done with; empty where there is none."""
        messages = tuple(self._latest)
        self._latest.clear()
        return next((text for severity, text in reversed(messages) if severity in ERRORS), "")

    def _add(self, message: Message) -> None:
        messages = self._slice
        if messages is not None:
            messages.append(message)
        self._latest.append(message)


@dataclass(frozen=True, slots=True)
class Flavour:
    """A TensorRT that is installed and safe to use here: package name, version, module and its message log."""

    name: str
    version: str
    trt: Any
    log: MessageLog

    @property
    def title(self) -> str:
        """Name and version for people, such as ``TensorRT-RTX 1.7.1.116``."""
        return f"{TITLES[self.name]} {self.version}"

    @property
    def is_rtx(self) -> bool:
        return self.name == TENSORRT_RTX


@dataclass(frozen=True, slots=True)
class FlavourStatus:
    """A flavour as it is here: ``version`` is empty when it is not installed, ``problem`` when it can build plans."""

    name: str
    version: str
    problem: str


def find_flavours() -> tuple[FlavourStatus, ...]:
    """Both flavours as they are here, without importing either."""
    return tuple(_status(name) for name in FLAVOURS)


def find_flavour() -> str | None:
    """Name of the flavour that builds plans here: ``tensorrt`` before ``tensorrt_rtx``; None where neither can."""
    return next((status.name for status in find_flavours() if not status.problem), None)


def load_flavour(name: str = "auto") -> Flavour:
    """Import ``tensorrt``, ``tensorrt_rtx`` or, for ``auto``, what find_flavour finds.

    Raises UsageError for another name, MissingExtraError when it is not installed, and DeviceError when it cannot work
    here: no driver for ``tensorrt``, a version that is not supported, a library that does not load.
    """
    if name not in {"auto", *FLAVOURS}:
        raise UsageError(f"No TensorRT flavour '{name}'. Use {', '.join(FLAVOURS)} or auto.")
    statuses = {status.name: status for status in find_flavours()}
    status = statuses[(find_flavour() or TENSORRT_RTX) if name == "auto" else name]
    if not status.version:
        raise MissingExtraError(status.name, _EXTRAS[status.name], "Building a TensorRT plan")
    if status.problem:
        raise DeviceError(f"{TITLES[status.name]} {status.version} cannot be used here: {status.problem}")
    return _import(status)


_LOADED: dict[str, Flavour] = {}
_LOADING = threading.Lock()


def _import(status: FlavourStatus) -> Flavour:
    with _LOADING:
        if status.name not in _LOADED:
            try:
                trt = importlib.import_module(status.name)
            except (ImportError, OSError) as error:
                raise DeviceError(
                    f"{TITLES[status.name]} {status.version} is installed but does not load: {error}. "
                    f"Install it again: pip install --force-reinstall 'vdali[{_EXTRAS[status.name]}]'"
                ) from error
            _LOADED[status.name] = Flavour(status.name, trt.__version__, trt, MessageLog(trt))
        return _LOADED[status.name]


def _status(name: str) -> FlavourStatus:
    version = _installed_version(name)
    if not version:
        return FlavourStatus(name, "", f"not installed: pip install 'vdali[{_EXTRAS[name]}]'")
    return FlavourStatus(name, version, _problem(name, version))


def _installed_version(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        return ""
    for pattern in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(pattern.format(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def _problem(name: str, version: str) -> str:
    """Why an installed flavour cannot be used; the only place that knows that ``tensorrt`` needs a driver.

    Without one, a Runtime or Builder of ``tensorrt`` 11.4 logs 'CUDA initialization failure' and the process ends in a
    segmentation fault. TensorRT-RTX builds for named targets without a driver.
    """
    major = re.match(r"\d+", version)
    if major is not None and int(major.group()) != _SUPPORTED_MAJOR[name]:
        return f"vdali needs version {_SUPPORTED_MAJOR[name]}.x. Install it: pip install 'vdali[{_EXTRAS[name]}]'"
    if name == TENSORRT and not (gpus := probe_gpu()).count:
        return f"it needs a GPU ({gpus.reason}). {gpus.advice} TensorRT-RTX builds plans for --target without one."
    return ""


def _logger(trt: Any, add: Callable[[Message], None]) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]  # the base is known at run time only
        """Hands messages to ``add``; TensorRT calls it from threads of its own, and it must not raise."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity != trt.ILogger.VERBOSE:  # thousands per build
                add((severity.name.lower(), msg))

    return Logger()
