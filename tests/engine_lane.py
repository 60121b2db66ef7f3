"""The least lane that overlaps an engine on a GPU: pixels up, inference with early hand-back, outputs down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from vdali.engine.backends.interface import DeviceEngine
from vdali.engine.device import HostDevice
from vdali.engine.slots import BufferSpec, Lease, allocate_slots
from vdali.engine.stages import Lane, Role, Stage

ON_HOST = (Role.READ, Role.FINISH)


def engine_lane(engine: DeviceEngine, slots: int, rows: int) -> Lane:
    """Lane from pixels [n, height, width, 3], n up to ``rows``, to outputs by name; what it has read it poisons."""
    device, outputs = engine.device, engine.output_specs(rows)
    streams = {role: (HostDevice() if role in ON_HOST else device).new_stream(role.value) for role in Role}
    contexts = [engine.new_context(streams[Role.COMPUTE]) for _ in range(slots)]

    def read(pixels: np.ndarray, lease: Lease) -> int:
        lease.buffers["staged"][: len(pixels)] = pixels
        return len(pixels)

    def decode(count: int, lease: Lease) -> int:
        device.copy(lease.buffers["pixels"][:count], lease.buffers["staged"][:count], stream=streams[Role.IN])
        return count

    def infer(count: int, lease: Lease) -> int:
        contexts[lease.slot].enqueue(
            lease.buffers["pixels"],
            {name: lease.buffers[name] for name in outputs},
            count,
            stream=streams[Role.COMPUTE],
            consumed=lease.freed.get("pixels"),
        )
        return count

    def copy(count: int, lease: Lease) -> int:
        for name in outputs:
            device.copy(lease.buffers[f"host {name}"][:count], lease.buffers[name][:count], stream=streams[Role.OUT])
        return count

    def finish(count: int, lease: Lease) -> dict[str, Any]:
        found = {name: lease.buffers[f"host {name}"][:count].copy() for name in outputs}
        for name in outputs:
            lease.buffers[f"host {name}"].fill(0xCD)
        return found

    on_host = {f"host {name}": replace(spec, pinned=True) for name, spec in outputs.items()}
    pixels = BufferSpec((rows, *engine.spec.preprocess.size, 3), np.uint8)
    stages = (
        Stage("read", Role.READ, read, takes=("staged",)),
        Stage("decode", Role.IN, decode, takes=("pixels",), frees=("staged",)),
        Stage("infer", Role.COMPUTE, infer, takes=tuple(outputs), frees=("pixels",)),
        Stage("copy", Role.OUT, copy, takes=tuple(on_host), frees=tuple(outputs)),
        Stage("finish", Role.FINISH, finish, frees=tuple(on_host)),
    )
    specs = {"staged": replace(pixels, pinned=True), "pixels": pixels, **outputs, **on_host}
    return Lane(streams, stages, allocate_slots(device, specs, slots), tuple(context.close for context in contexts))
