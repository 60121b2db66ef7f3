"""Checks of Python, the CPU, memory, open files and disks."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import tempfile
from importlib import metadata

from ..cgroup import memory_limit_bytes
from ..cpu import CpuAllowance, cpu_allowance, cpu_flags, cpu_model, has_vnni
from .report import Check, Fact, Status

GIB = 1 << 30
MIN_MEMORY_BYTES = GIB
MIN_DISK_BYTES = GIB
MIN_OPEN_FILES = 1024
"""Linux' usual soft limit; lanes, shards and part files stay far below it."""

SIMD_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "asimd", "asimddp")


def machine_checks() -> list[Check]:
    """Python, packages, CPU, memory, open files and disks, as this process meets them."""
    return [_python(), *_packages(), *_cpu(), _memory(), _open_files(), *_disks()]


def _python() -> Check:
    found = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    try:
        version = metadata.version("vdali")
    except metadata.PackageNotFoundError:
        return Check(
            "machine", "vdali", Status.WARNING, f"not installed, run from a folder; {found}", "pip install vdali"
        )
    return Check("machine", "vdali", Status.OK, f"vdali {version}, {found}", facts={"vdali": version})


def _packages() -> list[Check]:
    """Whether all that the base install requires is there; nothing where vdali itself is not installed."""
    required = _required_packages()
    if not required:
        return []
    missing = [name for name in required if package_version(name) is None]
    found = f"{len(required) - len(missing)} of {len(required)} required packages are installed"
    if missing:
        found += f"; missing: {', '.join(missing)}"
        return [Check("machine", "packages", Status.ERROR, found, f"pip install {' '.join(missing)}")]
    return [Check("machine", "packages", Status.OK, found)]


def _required_packages() -> list[str]:
    """Names from vdali's own metadata, such as ``onnx>=1.18``, without extras and other platforms."""
    try:
        lines = metadata.requires("vdali") or []
    except metadata.PackageNotFoundError:
        return []
    names = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        elsewhere = "platform_machine" in marker and platform.machine() not in marker
        if "extra" not in marker and not elsewhere:
            names.append(requirement.split(">")[0].split("=")[0].split("<")[0].strip())
    return names


def package_version(*names: str) -> str | None:
    """Version of the first of these distributions that is installed; nothing is imported."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _cpu() -> list[Check]:
    allowance, flags = cpu_allowance(), cpu_flags()
    simd = [name for name in SIMD_FLAGS if name in flags]
    facts: dict[str, Fact] = {
        "model": cpu_model(),
        "present": allowance.present,
        "affinity": allowance.affinity,
        "quota_cpus": allowance.quota,
        "threads": allowance.threads,
        "instructions": list(simd),
    }
    found = f"{cpu_model() or platform.machine()}: {_allowance_text(allowance)}"
    if not flags:
        return [Check("machine", "CPU", Status.OK, found, facts=facts)]
    found += f"; {', '.join(simd) or 'no SIMD that matters'}"
    if platform.machine() != "x86_64":
        return [Check("machine", "CPU", Status.OK, found, facts=facts)]
    slow = "avx2" not in flags
    advice = "Decoding and inference are several times slower without AVX2." if slow else ""
    return [Check("machine", "CPU", Status.WARNING if slow else Status.OK, found, advice, facts), _int8()]


def _allowance_text(allowance: CpuAllowance) -> str:
    quota = "no quota" if allowance.quota is None else f"a quota of {allowance.quota:g}"
    return f"{allowance.threads} threads ({allowance.present} CPUs, {allowance.affinity} allowed, {quota})"


def _int8() -> Check:
    if has_vnni():
        return Check("machine", "int8 on CPU", Status.OK, "VNNI instructions")
    return Check(
        "machine",
        "int8 on CPU",
        Status.MISSING,
        "no VNNI instructions: int8 models saturate or are slower than fp32",
        "Use --precision fp32 on this CPU.",
    )


def _memory() -> Check:
    try:
        import psutil
    except ImportError as error:
        return Check("machine", "memory", Status.ERROR, f"psutil cannot be imported ({error})", "pip install psutil")
    memory, limit = psutil.virtual_memory(), memory_limit_bytes()
    free = memory.available if limit is None else min(memory.available, limit)
    found = f"{memory.total / GIB:.1f} GiB, {memory.available / GIB:.1f} available"
    if limit is not None and limit < memory.total:
        found += f", limited to {limit / GIB:.1f} by the control group"
    facts = {"total_bytes": memory.total, "available_bytes": memory.available, "limit_bytes": limit}
    if free < MIN_MEMORY_BYTES:
        return Check("machine", "memory", Status.WARNING, found, "Use a smaller --batch-size.", facts)
    return Check("machine", "memory", Status.OK, found, facts=facts)


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit_text(soft)} (may be raised to {_limit_text(hard)})"
    facts = {"soft": soft, "hard": hard}
    if soft != resource.RLIM_INFINITY and soft < MIN_OPEN_FILES:
        advice = f"Raise it: ulimit -n {MIN_OPEN_FILES}"
        return Check("storage", "open files", Status.WARNING, found, advice, facts)
    return Check("storage", "open files", Status.OK, found, facts=facts)


def _limit_text(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _disks() -> list[Check]:
    here = _disk("current folder", os.getcwd(), "Give an output folder that is writable.")
    folder = _cache_folder()
    if folder is None:
        return [Check("storage", "cache", Status.ERROR, "platformdirs cannot be imported", "pip install platformdirs")]
    return [_disk("cache", folder, "Set VDALI_CACHE to a folder that is writable."), here]


def _cache_folder() -> str | None:
    try:
        from ...kernels.cache import cache_folder
    except ImportError:
        return None
    return os.path.abspath(cache_folder())


def _disk(name: str, folder: str, advice: str) -> Check:
    """Free space, and whether a file can be made in ``folder`` or in the folder in which it would be made."""
    existing = folder
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    free = shutil.disk_usage(existing).free
    # a name that is not UTF-8 could be printed nowhere
    shown = os.fsencode(folder).decode(errors="replace")
    found = f"{shown}: {free / GIB:.1f} GiB free"
    facts: dict[str, Fact] = {"folder": shown, "free_bytes": free}
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Check("storage", name, Status.ERROR, f"{found}, not writable ({error.strerror})", advice, facts)
    if free < MIN_DISK_BYTES:
        return Check("storage", name, Status.WARNING, found, "Make room, or choose another disk.", facts)
    return Check("storage", name, Status.OK, found, facts=facts)
