"""TensorRT without a GPU: a runtime that computes mean colours on FakeCudaRuntime, and remembers what it was told.

Enums, the logger and the names of methods are those of the real ``tensorrt_rtx``; a test holds the signatures against
it. A plan is JSON: ``plan_bytes`` makes one.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorrt_rtx as real
from fake_cuda import POISON, FakeCudaRuntime
from vdali.engine.cuda.device import CudaBuffer
from vdali.engine.plans.flavour import TENSORRT, TENSORRT_RTX, Flavour, MessageLog

SCRATCH_BYTES = 4096
INPUT = "images"
DTYPES = {"float32": real.DataType.FLOAT, "int64": real.DataType.INT64, "uint8": real.DataType.UINT8}
DTYPES |= {"float16": real.DataType.HALF, "int32": real.DataType.INT32}


def plan_bytes(
    *,
    smallest: int = 1,
    largest: int = 8,
    size: tuple[int, int] = (8, 8),
    pixels: str = "uint8",
    outputs: dict[str, tuple[str, list[int]]] | None = None,
) -> bytes:
    """``outputs``: dtype, and shape of one row, by name."""
    wanted = outputs or {"embedding": ("float32", [3])}
    return json.dumps(
        {"smallest": smallest, "largest": largest, "size": size, "pixels": pixels, "outputs": wanted}
    ).encode()


@dataclass
class FakeTensorRT:
    """Stands in for the module. ``trace`` is what happened to objects, in order; ``calls`` counts methods.

    ``refuses``: methods (and ``capture``) that give False, or None, from now on, with the error they log. ``is_rtx``
    adds what TensorRT-RTX alone has.
    """

    cuda: FakeCudaRuntime
    is_rtx: bool = False
    trace: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refuses: dict[str, str] = field(default_factory=dict)
    validity: tuple[Any, int] = (real.EngineValidity.VALID, 0)
    is_capturable: bool = True
    host_code_allowed: bool = False
    contexts: int = 0
    scratch: list[tuple[int, int]] = field(default_factory=list)
    strategies: set[Any] = field(default_factory=set)
    profiles: set[Any] = field(default_factory=set)

    ILogger = real.ILogger
    DataType = real.DataType
    TensorIOMode = real.TensorIOMode
    TensorLocation = real.TensorLocation
    ExecutionContextAllocationStrategy = real.ExecutionContextAllocationStrategy
    EngineValidity = real.EngineValidity
    EngineInvalidityDiagnostics = real.EngineInvalidityDiagnostics
    DynamicShapesKernelSpecializationStrategy = real.DynamicShapesKernelSpecializationStrategy

    def __post_init__(self) -> None:
        version, name = ("1.7.1.116", TENSORRT_RTX) if self.is_rtx else ("11.4.0.106", TENSORRT)
        self.flavour = Flavour(name, version, self, MessageLog(self))

    def Runtime(self, logger: Any) -> FakeRuntime:
        if "Runtime" in self.refuses:
            raise TypeError("factory function returned nullptr")
        return FakeRuntime(self)

    def agrees(self, method: str) -> bool:
        """Note the call; where it is to be refused, log why."""
        self.calls.append(method)
        if method in self.refuses:
            self.flavour.log.logger.log(real.ILogger.ERROR, self.refuses[method])
        return method not in self.refuses


class _Traced:
    """Says when it is gone."""

    def __init__(self, trt: FakeTensorRT, name: str) -> None:
        self._trt, self._name = trt, name
        trt.trace.append(name)

    def __del__(self) -> None:
        self._trt.trace.append(f"{self._name} gone")


class FakeRuntime(_Traced):
    def __init__(self, trt: FakeTensorRT) -> None:
        super().__init__(trt, "runtime")

    @property
    def engine_host_code_allowed(self) -> bool:
        return self._trt.host_code_allowed

    @engine_host_code_allowed.setter
    def engine_host_code_allowed(self, allowed: bool) -> None:
        self._trt.host_code_allowed = allowed

    def get_engine_validity(self, buffer: bytes) -> tuple[Any, int]:
        assert self._trt.is_rtx
        return self._trt.validity

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> FakeEngine | None:
        if not self._trt.agrees("deserialize_cuda_engine"):
            return None
        return FakeEngine(self._trt, json.loads(serialized_engine))


class FakeEngine(_Traced):
    def __init__(self, trt: FakeTensorRT, plan: dict[str, Any]) -> None:
        super().__init__(trt, "engine")
        self.plan = plan
        self._outputs = list(plan["outputs"])

    @property
    def num_io_tensors(self) -> int:
        return 1 + len(self._outputs)

    def get_tensor_name(self, index: int) -> str:
        return (INPUT, *self._outputs)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return real.TensorIOMode.INPUT if name == INPUT else real.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return DTYPES[self.plan["pixels"] if name == INPUT else self.plan["outputs"][name][0]]

    def get_tensor_location(self, name: str) -> Any:
        return real.TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        assert name == INPUT, "an output has no profile"
        assert profile_index == 0
        rest = (*self.plan["size"], 3)
        return [(rows, *rest) for rows in (self.plan["smallest"], self.plan["largest"], self.plan["largest"])]

    def get_device_memory_size_for_profile_v2(self, profile_index: int) -> int:
        return SCRATCH_BYTES

    def create_runtime_config(self) -> FakeRuntimeConfig:
        return FakeRuntimeConfig(self._trt)

    def create_execution_context(self, runtime_config: FakeRuntimeConfig) -> FakeExecutionContext | None:
        if not self._trt.agrees("create_execution_context"):
            return None
        return FakeExecutionContext(self._trt, self.plan)


class FakeRuntimeConfig:
    def __init__(self, trt: FakeTensorRT) -> None:
        self._trt = trt

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self._trt.strategies.add(strategy)

    def create_runtime_cache(self) -> Any:
        assert self._trt.is_rtx
        return SimpleNamespace()

    def set_runtime_cache(self, cache: Any) -> bool:
        return self._trt.agrees("set_runtime_cache")

    @property
    def dynamic_shapes_kernel_specialization_strategy(self) -> Any:
        return real.DynamicShapesKernelSpecializationStrategy.LAZY

    @dynamic_shapes_kernel_specialization_strategy.setter
    def dynamic_shapes_kernel_specialization_strategy(self, strategy: Any) -> None:
        assert self._trt.is_rtx
        self._trt.strategies.add(strategy)


class FakeExecutionContext(_Traced):
    """Two kernels per batch: pixels to scratch, whereupon the input is consumed and poisoned, and scratch to outputs.

    Everything is checked when a batch is started, not when it runs: what was set then is what counts.
    """

    def __init__(self, trt: FakeTensorRT, plan: dict[str, Any]) -> None:
        super().__init__(trt, f"context {trt.contexts}")
        trt.contexts += 1
        self._plan = plan
        self._shape: tuple[int, ...] | None = None
        self._inferred = False
        self._settled: tuple[int, ...] | None = None
        self._addresses: dict[str, int] = {}
        self._scratch: tuple[int, int] | None = None
        self._consumed = 0

    def set_device_memory(self, memory: int, size: int) -> None:
        assert memory % 16 == 0
        assert size >= SCRATCH_BYTES
        self._scratch = (memory, size)
        self._trt.scratch.append(self._scratch)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert name == INPUT
        self._inferred = False
        in_profile = self._plan["smallest"] <= shape[0] <= self._plan["largest"]
        if not self._trt.agrees("set_input_shape") or not in_profile:
            return False
        self._shape = tuple(shape)
        return True

    def infer_shapes(self) -> list[str]:
        if not self._trt.agrees("infer_shapes"):
            return [INPUT]
        self._inferred = True
        return []

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        assert self._inferred
        assert self._shape is not None
        return self._shape if name == INPUT else (self._shape[0], *self._plan["outputs"][name][1])

    def set_tensor_address(self, name: str, memory: int) -> bool:
        assert self._inferred, "addresses come after shapes here, so that a refused shape leaves none behind"
        self._addresses[name] = memory
        return self._trt.agrees("set_tensor_address")

    def set_input_consumed_event(self, event: int) -> bool:
        assert event, "what TensorRT makes of none is not written anywhere"
        self._consumed = event
        return self._trt.agrees("set_input_consumed_event")

    def is_stream_capturable(self, stream: int) -> bool:
        assert self._trt.is_rtx
        return self._trt.is_capturable

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert self._scratch is not None
        assert self._addresses.keys() == {INPUT, *self._plan["outputs"]}
        cuda = self._trt.cuda
        capturing = stream_handle in cuda.captures
        assert not capturing or self._settled == self._shape, "a plain run has to come between a shape and a capture"
        if not self._trt.agrees("capture" if capturing else "execute_async_v3"):
            return False
        self._settled = self._shape
        self._start(stream_handle)
        return True

    def _start(self, stream: int) -> None:
        assert self._shape is not None
        assert self._scratch is not None
        cuda, rows = self._trt.cuda, self._shape[0]
        pixels = CudaBuffer(self._addresses[INPUT], self._shape, self._plan["pixels"])
        means = CudaBuffer(self._scratch[0], (rows, 3), np.float32)
        outputs = [
            CudaBuffer(self._addresses[name], (rows, *shape), dtype)
            for name, (dtype, shape) in self._plan["outputs"].items()
        ]

        def consume() -> None:
            content = cuda.array(pixels)
            cuda.array(means)[...] = content.reshape(rows, -1, 3).mean(axis=1, dtype=np.float32)
            content.fill(POISON)

        def write() -> None:
            found = cuda.array(means)
            for output in outputs:
                target = cuda.array(output)
                target[...] = found.reshape(rows, *[1] * (target.ndim - 2), 3)[..., : target.shape[-1]]
            found.fill(np.nan)

        cuda.enqueue(stream, consume)
        if self._consumed:
            cuda.cudaEventRecord(self._consumed, stream)
        cuda.enqueue(stream, write)


def counted(trace: list[str]) -> Counter[str]:
    """How many of each kind are alive."""
    alive: Counter[str] = Counter()
    for entry in trace:
        alive[entry.split()[0]] += -1 if entry.endswith(" gone") else 1
    return alive
