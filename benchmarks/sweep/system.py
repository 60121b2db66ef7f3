"""The system of one cell: vdali's own data path at a given batch size, built in the process that measures it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engine.backends.interface import DeviceEngine, Engine
from ...engine.cpu import cpu_allowance
from ...engine.decoders.make import DecoderName
from ...engine.errors import InferError, VdaliError
from ...engine.lanes import LaneOptions
from ..systems.interface import MakeSystem, SystemOptions
from ..systems.vdali_system import VdaliSystem

_OOM_SCORE = Path("/proc/self/oom_score_adj")


def cell_maker(
    model: Path, decoder: DecoderName, batch_size: int, *, device: str, lanes: int | None, threads: int
) -> MakeSystem:
    """Picklable maker of the system that runs ``model`` in engine calls of ``batch_size`` images."""
    lane_options = LaneOptions(
        decoder=decoder, batch_size=batch_size, micro_batch=batch_size, lanes=lanes, threads=threads
    )
    return partial(_cell_system, model, lane_options, device)


def _cell_system(model: Path, lanes: LaneOptions, device: str, files: Sequence[Path]) -> VdaliSystem:
    # where the machine's memory ends, this process goes, and not the one that keeps the results
    with contextlib.suppress(OSError):
        _OOM_SCORE.write_text("1000", encoding="ascii")
    options = SystemOptions(lanes.batch_size, cpus=cpu_allowance().threads, device=device)
    return VdaliSystem(model, files, options, lanes=lanes, around=partial(_whole_batches, lanes.batch_size))


def _whole_batches(batch_size: int, engine: Engine) -> Engine:
    """Engine for batches of just this size.

    Those of a GPU, whose buffers are allocated before the pass, are taken as they are. Raises VdaliError where one is
    built for smaller batches: its lanes would go on with those, and the point would be measured twice.
    """
    if not isinstance(engine, DeviceEngine):
        return WholeBatches(engine)
    if batch_size > engine.max_batch:
        raise VdaliError(
            f"The engine takes {engine.max_batch} images at most. Build a plan for more: vdali build --batch-profile "
            f"1,{batch_size},{batch_size}"
        )
    return engine


class WholeBatches:
    """Engine whose failure on a batch ends the pass.

    The data path would try the samples one by one, and so hide that memory has ended for this batch size.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name
        self.spec = engine.spec
        self.content = engine.content

    def infer(self, pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        try:
            return self._engine.infer(pixels)
        except InferError as error:
            raise VdaliError(str(error)) from error

    def close(self) -> None:
        self._engine.close()
