"""ONNX Runtime's CUDA provider as an engine: on the caller's stream, on the caller's buffers, and on no other provider.

ONNX Runtime ties a session to one stream when it is made, so there is a session, with weights of its own, for each
stream; contexts on the same stream share it. Give the lanes of a GPU one stream for compute.
"""

from __future__ import annotations

import ctypes
import io
import threading
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cuda.device import CudaDevice, address_of
from ..cuda.foreign import stream_handle
from ..device import Buffer, Event, Stream
from ..errors import DeviceError, InferError, ModelError
from ..slots import BufferSpec
from ..spec import INPUT_NAME, OUTPUT_NAMES, ModelSpec, Precision
from .buffers import HostCalls, check_batch
from .content import model_content, model_spec
from .onnxruntime import CPU, check_signature, session_options

CUDA = "CUDAExecutionProvider"

MAX_BATCH = 1024
"""ONNX Runtime has no bound of its own; the GPU's memory has."""

_FATAL = 4
_ON_SHAPES = frozenset(
    {
        *("Shape", "Size", "ConstantOfShape", "Range"),
        *("Concat", "Expand", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Where"),
        *("Add", "Cast", "Div", "Equal", "Max", "Min", "Mul", "Sub"),
    }
)


@dataclass(slots=True)
class _Session:
    """A session of one stream, and how many contexts use it."""

    session: Any
    contexts: int = 0


class OnnxRuntimeCudaEngine:
    """A vdali ONNX file on ``device``, which it closes in the end.

    The first picture is inferred when the engine is made, so that a provider that cannot work shows at once. Raises
    ModelError for an unusable file and DeviceError when the CUDA provider cannot be had: it never falls back.
    """

    def __init__(self, path: Path, device: CudaDevice) -> None:
        self.name = f"onnxruntime:{CUDA}"
        self.spec = model_spec(path)
        self.content = model_content(path)
        self.device = device
        self.max_batch = MAX_BATCH
        self._path = path
        self._lock = threading.Lock()
        self._sessions: dict[int, _Session] = {}
        self._host_calls = HostCalls(self, device)
        try:
            self._own_stream = stream_handle(self._host_calls.stream)
            self._specs = self._first_picture()
        except BaseException:
            self._host_calls.close()
            raise

    def output_specs(self, rows: int) -> Mapping[str, BufferSpec]:
        return {name: spec.with_rows(rows) for name, spec in self._specs.items()}

    def new_context(self, stream: Stream) -> OnnxRuntimeContext:
        """Bindings for one slot, and the session of ``stream``. Raises DeviceError without enough memory."""
        handle = stream_handle(stream)
        with self._lock:
            own = self._sessions.get(self._own_stream)
            if handle != self._own_stream and own is not None and not own.contexts:
                del self._sessions[self._own_stream]  # its weights; ``infer`` makes another where it is called
            if handle not in self._sessions:
                self._sessions[handle] = _Session(_session(self._path, self.spec, self.device, handle))
            found = self._sessions[handle]
            found.contexts += 1
        return OnnxRuntimeContext(self, found.session, handle)

    def give_back(self, stream: int) -> None:
        """One context on the stream is gone; with the last one the session goes."""
        with self._lock:
            self._sessions[stream].contexts -= 1
            if not self._sessions[stream].contexts:
                del self._sessions[stream]

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        return self._host_calls.infer(pixels)

    def close(self) -> None:
        """Let go of the sessions before their streams; contexts of others are closed before."""
        own = self._sessions.get(self._own_stream)
        if own is not None and not own.contexts:
            del self._sessions[self._own_stream]
        self._host_calls.close()
        self._sessions.clear()
        self.device.close()

    def _first_picture(self) -> dict[str, BufferSpec]:
        """Outputs of one black picture, as the runtime gives them."""
        session = _session(self._path, self.spec, self.device, self._own_stream)
        check_signature(session, self.spec, self._path)
        names = list(OUTPUT_NAMES[self.spec.task])
        try:
            values = session.run(names, {INPUT_NAME: np.zeros((1, *self.spec.preprocess.size, 3), np.uint8)})
        except Exception as error:  # its exceptions share no base but Exception
            raise DeviceError(_cannot(self.device, error)) from error
        self._sessions[self._own_stream] = _Session(session)
        return {
            name: BufferSpec((self.max_batch, *value.shape[1:]), value.dtype)
            for name, value in zip(names, values, strict=True)
        }


class OnnxRuntimeContext:
    """Bindings of one slot to the session of its stream.

    ONNX Runtime does not tell when the input has been read, so ``consumed`` is left to the stream.
    """

    def __init__(self, engine: OnnxRuntimeCudaEngine, session: Any, stream: int) -> None:
        import onnxruntime as ort

        self._engine = engine
        self._session = session
        self._stream = stream
        self._specs = engine.output_specs(engine.max_batch)
        self._pixels = BufferSpec((engine.max_batch, *engine.spec.preprocess.size, 3), np.uint8)
        self._options = ort.RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def enqueue(
        self,
        pixels: Buffer,
        outputs: Mapping[str, Buffer],
        rows: int,
        *,
        stream: Stream,
        consumed: Event | None = None,
    ) -> None:
        """Start a batch; see Context."""
        del consumed
        check_batch(pixels, outputs, rows, wanted=self._pixels, specs=self._specs)
        if stream_handle(stream) != self._stream:
            raise ValueError("The context was made for another stream. Make one for each.")
        ordinal = self._engine.device.cuda.ordinal
        binding = self._session.io_binding()
        shape = [rows, *pixels.shape[1:]]
        binding.bind_input(INPUT_NAME, "cuda", ordinal, np.uint8, shape, address_of(pixels))
        for name, spec in self._specs.items():
            shape = [rows, *spec.shape[1:]]
            binding.bind_output(name, "cuda", ordinal, spec.dtype, shape, address_of(outputs[name]))
        try:
            self._session.run_with_iobinding(binding, self._options)
        except Exception as error:  # its exceptions share no base but Exception
            self._engine.device.cuda.check_alive("ONNX Runtime")
            raise InferError("runtime_error", f"ONNX Runtime failed on a batch of {rows}: {error}") from error

    def close(self) -> None:
        if self._session is not None:
            self._session = None
            self._engine.give_back(self._stream)


def _session(path: Path, spec: ModelSpec, device: CudaDevice, stream: int) -> Any:
    """Session on the CUDA provider and the cudaStream_t ``stream``, with no picture ever computed on the CPU."""
    import onnxruntime as ort

    options = session_options(1)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    provider = {
        "device_id": str(device.cuda.ordinal),
        "user_compute_stream": str(stream),
        "use_tf32": str(int(spec.precision is Precision.TF32)),
    }
    ort.set_default_logger_severity(_FATAL)  # what it would print is in the messages below
    with redirect_stdout(io.StringIO()):  # it prints there, where results go
        ort.preload_dlls()  # CUDA and cuDNN out of the nvidia wheels, which the loader does not search
    try:
        session = ort.InferenceSession(str(path), options, providers=[(CUDA, provider)])
    except Exception as error:  # its exceptions share no base but Exception
        raise _refusal(path, device, error) from error
    if session.get_providers()[0] != CUDA:
        raise DeviceError(_cannot(device, _why_not_loaded() or f"it fell back to {session.get_providers()[0]}"))
    session.disable_fallback()
    if left := operators_on_cpu(session):
        raise DeviceError(_cannot(device, f"it has no kernel for {', '.join(left)} and would compute that on the CPU"))
    return session


def operators_on_cpu(session: Any) -> list[str]:
    """Operators that the session leaves to the CPU, save for those on shapes, which belong there: they come with the
    first Shape of a graph, and move no picture.
    """
    on_cpu = {
        node.op_type
        for part in session.get_provider_graph_assignment_info()
        if part.ep_name == CPU
        for node in part.get_nodes()
    }
    return sorted(on_cpu - _ON_SHAPES)


def _refusal(path: Path, device: CudaDevice, error: Exception) -> ModelError | DeviceError:
    """A file that no provider could load is the model's fault, all else the provider's."""
    if type(error).__name__ in ("InvalidProtobuf", "InvalidGraph", "NoSuchFile"):
        return ModelError(f"ONNX Runtime cannot load {path}: {str(error).rstrip('.')}. Export the model again.")
    return DeviceError(_cannot(device, error))


def _why_not_loaded() -> str:
    """What the loader misses for the provider's library; empty when it misses nothing."""
    import onnxruntime as ort

    folder = Path(ort.__file__).parent / "capi"
    try:
        for library in ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"):
            ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return ""


def _cannot(device: CudaDevice, reason: object) -> str:
    return (
        f"ONNX Runtime cannot use its CUDA provider on {device.name}: {str(reason).rstrip('.')}. "
        "Run `vdali doctor`, or use --device cpu."
    )
