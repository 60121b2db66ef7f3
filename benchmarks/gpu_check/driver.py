"""Whether this machine has a GPU at all: asked of the driver itself, with nothing but the standard library.

So that a machine without one is told so at once, before anything is installed or imported.
"""

from __future__ import annotations

import ctypes
import os
import sys

NO_GPU_STATUS = 4
"""Exit status of a device that is missing, as `vdali` gives it."""

_LIBRARY = "libcuda.so.1"
_HIDDEN = "CUDA_VISIBLE_DEVICES"


def why_no_gpu() -> str:
    """Empty where the driver knows a GPU; else one sentence: what was looked for and found, and what to do."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return (
            f"No GPU to check: there is no NVIDIA driver here ({_LIBRARY} is not found). Run this on a machine with an "
            "NVIDIA GPU, in a container started with --gpus all."
        )
    status = driver.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status == 0 and count.value > 0:
        return ""
    found = f"cuInit gives status {status}" if status else "the driver counts 0 GPUs"
    hidden = os.environ.get(_HIDDEN)
    if hidden is not None:
        return f"No GPU to check: {found} with {_HIDDEN}={hidden!r}. Unset or correct that variable."
    return f"No GPU to check: {found}. See what nvidia-smi says; in a container start it with --gpus all."


def main() -> int:
    reason = why_no_gpu()
    if reason:
        print(reason, file=sys.stderr)
    return NO_GPU_STATUS if reason else 0


if __name__ == "__main__":
    sys.exit(main())
