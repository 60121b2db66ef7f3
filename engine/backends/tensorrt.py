"""TensorRT as an engine: a plan of ``tensorrt`` or ``tensorrt_rtx`` on one GPU.

Each slot has an execution context and scratch of its own, so batches overlap; all work is on the stream that the
caller gives. Plans are built with no auxiliary streams, so nothing leaves it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cuda.device import CudaDevice
from ..device import Stream
from ..errors import DeviceError, ModelError
from ..gpu_probe import Gpu
from ..plans.check import require_fit
from ..plans.flavour import Flavour
from ..plans.sidecar import PlanSidecar
from ..slots import BufferSpec
from .buffers import HostCalls
from .tensorrt_context import TensorRTContext
from .tensorrt_plan import LoadedPlan


@dataclass(frozen=True, slots=True)
class TensorRTOptions:
    """``cuda_graphs``: replay batches whose buffers come again, which saves the CPU the launches, but gives the input
    back only with the outputs. ``trust_host_code``: load version-compatible plans, which run code out of the file.
    """

    cuda_graphs: bool = False
    trust_host_code: bool = False


class TensorRTEngine:
    """A plan on ``device``, which it closes in the end.

    ``sidecar`` is what open_plan has found; ``content`` is that of the ONNX file the plan was built from. Raises
    ModelError for a plan that is not for this TensorRT, not for ``gpu``, or that nobody has said to trust.
    """

    def __init__(
        self,
        path: Path,
        device: CudaDevice,
        *,
        sidecar: PlanSidecar,
        flavour: Flavour,
        gpu: Gpu,
        options: TensorRTOptions | None = None,
    ) -> None:
        options = options or TensorRTOptions()
        require_fit(path, sidecar, flavour, gpu)
        if sidecar.holds_host_code and not options.trust_host_code:
            raise ModelError(
                f"The plan {path} is version-compatible, so loading it runs code out of the file. Allow that only for "
                "a plan that you built or whose maker you trust: --trust-plan. Or build one without "
                "--version-compatible."
            )
        self.name = f"{flavour.name}:{flavour.version}"
        self.spec = sidecar.spec
        self.content = sidecar.key.model_content
        self.device = device
        self._options = options
        with device.cuda.current():
            self._plan = LoadedPlan(path, flavour, sidecar.spec, host_code=sidecar.holds_host_code)
        self.max_batch = self._plan.tensors.largest
        self._contexts: weakref.WeakSet[TensorRTContext] = weakref.WeakSet()
        self._host_calls = HostCalls(self, device)

    def output_specs(self, rows: int) -> Mapping[str, BufferSpec]:
        return {name: spec.with_rows(rows) for name, spec in self._plan.tensors.outputs.items()}

    def new_context(self, stream: Stream) -> TensorRTContext:
        """Execution context with scratch for one slot. Raises DeviceError without enough memory."""
        with self.device.cuda.current():
            context = TensorRTContext(self._plan, self.device, stream, cuda_graphs=self._options.cuda_graphs)
        self._contexts.add(context)
        return context

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        return self._host_calls.infer(pixels)

    def close(self) -> None:
        """Close contexts that are still open, then engine, runtime and device; no stream works for it any more.

        What a lost GPU refuses is left to the end of the process: it would hide why the GPU is lost.
        """
        self._host_calls.close()
        for context in list(self._contexts):
            with suppress(DeviceError):
                context.close()
        with ExitStack() as held:
            with suppress(DeviceError):
                held.enter_context(self.device.cuda.current())
            self._plan.close()
        self.device.close()
