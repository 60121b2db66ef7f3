"""CPU and memory limits that a container or a service manager sets (Linux control groups, v1 and v2).

A limit may sit on any group above the process, so every ancestor is read and the tightest one counts.
``root`` stands for ``/`` and lets a test describe another machine. Where there are no control groups there is
no limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

UNLIMITED_BYTES = 1 << 60
"""Version 1 says 'no limit' with a number near 2**63; nothing real is above this."""


def cpu_quota(root: str = "/") -> float | None:
    """CPUs' worth of time that the tightest quota allows (1.5 is 150 ms in each 100 ms), or None."""
    quotas = [_quota_of_v2(folder) for folder in _folders(root, "")]
    quotas += [_quota_of_v1(folder) for folder in _folders(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit_bytes(root: str = "/") -> int | None:
    """Bytes that the tightest memory limit allows, or None."""
    limits = [_integer(os.path.join(folder, "memory.max")) for folder in _folders(root, "")]
    limits += [_integer(os.path.join(folder, "memory.limit_in_bytes")) for folder in _folders(root, "memory")]
    return min((limit for limit in limits if limit is not None and limit < UNLIMITED_BYTES), default=None)


def _quota_of_v2(folder: str) -> float | None:
    quota, _, period = _text(os.path.join(folder, "cpu.max")).partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) > 0 else None


def _quota_of_v1(folder: str) -> float | None:
    quota = _integer(os.path.join(folder, "cpu.cfs_quota_us"))
    period = _integer(os.path.join(folder, "cpu.cfs_period_us"))
    return quota / period if quota and period else None


def _folders(root: str, controller: str) -> Iterator[str]:
    """Folders of this process's group and of all above it; ``controller`` is empty for version 2.

    Without a namespace of its own a container sees the host's group path in /proc but its own group at the top
    of the mount: deeper folders are then absent and read as 'no limit', the top one is right.
    """
    path = _group_path(root, controller)
    if path is None:
        return
    mount = os.path.join(root, "sys/fs/cgroup", controller)
    parts = [part for part in path.split("/") if part not in {"", ".."}]
    for depth in range(len(parts), -1, -1):
        yield os.path.join(mount, *parts[:depth])


def _group_path(root: str, controller: str) -> str | None:
    """This process's group, from lines such as ``0::/a/b`` (version 2) or ``4:cpu,cpuacct:/a/b``."""
    for line in _text(os.path.join(root, "proc/self/cgroup")).splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(","):
            return fields[2]
    return None


def _integer(path: str) -> int | None:
    """Non-negative number in a file; None for ``max``, ``-1`` or no such file."""
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
