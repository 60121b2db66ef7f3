"""TensorRT-RTX: the same checks where it supports the GPU; where not (H100, H200), that it is plainly refused."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...engine.backends.load import load_plan
from ...engine.backends.tensorrt import TensorRTEngine
from ...engine.errors import VdaliError
from ...engine.gpu_probe import probe_gpu
from ...engine.plans.flavour import TENSORRT_RTX, load_flavour
from ...engine.plans.key import sm_name
from ...engine.plans.options import known_targets
from .engine_checks import engine_checks
from .part_onnxruntime import cpu_rows
from .part_tensorrt import build
from .record import Check, CheckFailedError, Found, RefusedError


def checks() -> Sequence[Check]:
    here = sm_name(probe_gpu().gpus[0].compute_capability)
    if here not in known_targets(load_flavour(TENSORRT_RTX)):
        return (
            Check(f"a plan for {here} is refused", functools.partial(_refused, (here,))),
            Check(f"a portable plan is refused on {here}", functools.partial(_refused, ())),
        )
    built = functools.cache(functools.partial(build, TENSORRT_RTX, (here,)))

    def open_engine() -> TensorRTEngine:
        return load_plan(built().path)

    return engine_checks(open_engine, cpu_rows)


def _refused(targets: tuple[str, ...]) -> Found:
    try:
        load_plan(build(TENSORRT_RTX, targets).path).close()
    except VdaliError as error:
        raise RefusedError(str(error)) from error
    raise CheckFailedError("it was built and loaded, though TensorRT-RTX does not list this GPU")
