"""The CPU that this process may use: how many threads, and which instructions."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from .cgroup import cpu_quota


@dataclass(frozen=True, slots=True)
class CpuAllowance:
    """CPUs for this process, of ``present`` in the machine.

    ``affinity`` counts those it may run on, ``quota`` is the control group's limit in CPUs' worth of time (None: no
    limit), and ``threads`` is how many threads keep all of that busy.
    """

    threads: int
    affinity: int
    quota: float | None
    present: int


def cpu_allowance(root: str = "/") -> CpuAllowance:
    """Allowance at this moment; ``root`` stands for ``/`` (see cgroup).

    A fractional quota is rounded up, as the JDK and Go do: with a quota of 1.5 two threads are paused for a quarter of
    the time and together do 1.5 CPUs' work, while a single thread would leave a third of it unused.
    """
    present = os.cpu_count() or 1
    # absent on macOS and Windows
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    quota = cpu_quota(root)
    threads = affinity if quota is None else min(affinity, math.ceil(quota))
    return CpuAllowance(threads=max(1, threads), affinity=affinity, quota=quota, present=present)


def cpu_model(root: str = "/") -> str:
    """Model name of the first CPU, or an empty string where the system does not tell."""
    return _cpuinfo(root).get("model name", "")


def cpu_flags(root: str = "/") -> frozenset[str]:
    """Instruction sets as Linux names them (avx2, avx512_vnni, ...); empty where the system does not tell."""
    values = _cpuinfo(root)
    return frozenset((values.get("flags") or values.get("Features") or "").split())


def has_vnni(root: str = "/") -> bool:
    """Whether int8 products are added in 32 bits by one instruction (AVX-VNNI or AVX-512 VNNI).

    Without it ONNX Runtime's int8 kernels on x86 add pairs in 16 bits and saturate.
    """
    return not cpu_flags(root).isdisjoint({"avx_vnni", "avx512_vnni"})


def _cpuinfo(root: str) -> dict[str, str]:
    """Keys and values of the first CPU in /proc/cpuinfo."""
    values: dict[str, str] = {}
    try:
        with open(os.path.join(root, "proc/cpuinfo"), encoding="utf-8", errors="replace") as file:
            for line in file:
                key, colon, value = line.partition(":")
                if not colon:
                    break
                values[key.strip()] = value.strip()
    except OSError:
        return {}
    return values
