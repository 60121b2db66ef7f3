"""Plans for FakeTensorRT: opened as engines, with buffers to run them on."""

from __future__ import annotations

import threading
from hashlib import sha256

import numpy as np
from fake_tensorrt import FakeTensorRT, plan_bytes
from models import plain_preprocess
from vdali.engine.backends.tensorrt import TensorRTEngine
from vdali.engine.cuda.device import CudaDevice
from vdali.engine.gpu_probe import Gpu
from vdali.engine.plans.key import PlanKey
from vdali.engine.plans.sidecar import PlanSidecar
from vdali.engine.spec import ModelSpec, Task

GPU = Gpu("NVIDIA Played", 24 << 30, "8.9")
SIZE = (8, 8)
LARGEST = 8


def sidecar_of(trt: FakeTensorRT, data: bytes, task: Task = Task.EMBED, **changes) -> PlanSidecar:
    key = PlanKey(
        model_content="c0ffee",
        precision="fp32",
        batch="1,8,8",
        flavour=trt.flavour.name,
        flavour_version=trt.flavour.version,
        targets=(),
        gpu=None if trt.is_rtx else GPU.name,
        compute_capability=None if trt.is_rtx else GPU.compute_capability,
        driver_major=None if trt.is_rtx else "580",
        tf32=False,
        workspace_bytes=1 << 30,
        optimization_level=3,
        hardware_compatibility="none",
        version_compatible=False,
        aux_streams=0,
    )
    key = PlanKey.from_json(key.to_json() | changes)
    spec = ModelSpec("model", task, plain_preprocess(SIZE))
    return PlanSidecar(key, spec, len(data), sha256(data).hexdigest(), 1.0, "2026-01-01", "built, not run", ())


def opened(trt, runtime, folder, *, options=None, task=Task.EMBED, gpu=GPU, changes=(), **plan) -> TensorRTEngine:
    """Engine of a plan with the properties ``plan`` and changes of its key."""
    data = plan_bytes(size=SIZE, largest=LARGEST, **plan)
    path = folder / "model.plan"
    path.write_bytes(data)
    device = CudaDevice(0, runtime=runtime)
    sidecar = sidecar_of(trt, data, task, **dict(changes))
    try:
        return TensorRTEngine(path, device, sidecar=sidecar, flavour=trt.flavour, gpu=gpu, options=options)
    except BaseException:
        device.close()
        raise


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *SIZE, 3), dtype=np.uint8)


def means(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(len(pixels), -1, 3).mean(axis=1, dtype=np.float32)


class Buffers:
    """Pixels and outputs on the device for ``rows`` rows, with what fills and reads them on a stream."""

    def __init__(self, engine, stream, rows: int = LARGEST) -> None:
        self.engine, self.stream, self.device = engine, stream, engine.device
        self.pixels = self.device.allocate((rows, *SIZE, 3), np.uint8)
        self.outputs = {n: self.device.allocate(s.shape, s.dtype) for n, s in engine.output_specs(rows).items()}
        self.host = self.device.allocate_pinned((rows, *SIZE, 3), np.uint8)
        self.back = {n: self.device.allocate_pinned(b.shape, b.dtype) for n, b in self.outputs.items()}

    def run(self, context, values: np.ndarray, consumed=None) -> np.ndarray:
        """Outputs of ``values``, all of the buffer, after the stream was waited for."""
        rows = len(values)
        self.host[:rows] = values
        self.on_stream(lambda: self.device.copy(self.pixels[:rows], self.host[:rows], stream=self.stream))
        self.start(context, rows, consumed)
        (name,) = self.outputs
        self.on_stream(lambda: self.device.copy(self.back[name], self.outputs[name], stream=self.stream))
        self.stream.synchronize()
        return self.back[name].copy()

    def start(self, context, rows: int, consumed=None) -> None:
        self.on_stream(lambda: context.enqueue(self.pixels, self.outputs, rows, stream=self.stream, consumed=consumed))

    def on_stream(self, work) -> None:
        """Run ``work`` as the stream's launcher does, and raise here what it raises."""
        raised, done = [], threading.Event()

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)
            done.set()

        self.stream.submit(guarded)
        assert done.wait(10)
        if raised:
            raise raised[0]

    def close(self) -> None:
        for buffer in (self.pixels, self.host, *self.outputs.values(), *self.back.values()):
            self.device.release(buffer)
