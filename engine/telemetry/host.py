"""What the machine and this process do, asked from the system through psutil.

One sample costs about half a millisecond of CPU on Linux. What a system does not tell is None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class HostSample:
    """One look at the host.

    ``cpu_busy`` is the share of time (0..1) that each CPU of the machine was busy since the sample before, and
    ``cpu_iowait`` the share of all CPUs' time that waited for a disk. ``process_cpu_s`` and all byte counts add up
    from the start of the sampler; ``process_read_bytes`` came from a disk, ``process_requested_bytes`` counts what
    the page cache and sockets gave as well. ``disk_*`` are those of the whole machine.
    """

    cpu_busy: tuple[float, ...]
    cpu_iowait: float
    process_cpu_s: float
    process_rss_bytes: int
    process_threads: int
    process_open_files: int | None
    process_read_bytes: int | None
    process_write_bytes: int | None
    process_requested_bytes: int | None
    disk_read_bytes: int | None
    disk_write_bytes: int | None


class HostSampler:
    """Takes samples; each one's shares cover the time since the one before."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cpus = psutil.cpu_times(percpu=True)
        self._process_cpu_s = self._cpu_s()
        self._process_bytes = self._process_io()
        self._disk_bytes = _disk_io()

    def sample(self) -> HostSample:
        before, self._cpus = self._cpus, psutil.cpu_times(percpu=True)
        pairs = list(zip(before, self._cpus, strict=False))
        total = sum(_total(now) - _total(then) for then, now in pairs)
        waited = sum(getattr(now, "iowait", 0.0) - getattr(then, "iowait", 0.0) for then, now in pairs)
        read, written, requested = _less(self._process_io(), self._process_bytes)
        disk_read, disk_written = _less(_disk_io(), self._disk_bytes)
        with self._process.oneshot():
            return HostSample(
                cpu_busy=tuple(_busy(then, now) for then, now in pairs),
                cpu_iowait=_share(waited, total),
                process_cpu_s=self._cpu_s() - self._process_cpu_s,
                process_rss_bytes=self._process.memory_info().rss,
                process_threads=self._process.num_threads(),
                process_open_files=self._process.num_fds() if os.name == "posix" else None,
                process_read_bytes=read,
                process_write_bytes=written,
                process_requested_bytes=requested,
                disk_read_bytes=disk_read,
                disk_write_bytes=disk_written,
            )

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _process_io(self) -> tuple[int | None, ...]:
        """Bytes read from disk, written to disk, and asked for; None where the system keeps that to itself."""
        try:
            counters = self._process.io_counters()
        except (AttributeError, psutil.AccessDenied):  # not on macOS; some sandboxes hide /proc/self/io
            return (None, None, None)
        return (counters.read_bytes, counters.write_bytes, getattr(counters, "read_chars", None))


def _disk_io() -> tuple[int | None, ...]:
    """Bytes read and written by all disks; None in a container that shows no disk, or hides them."""
    try:
        counters = psutil.disk_io_counters()
    except (OSError, RuntimeError):  # no /proc/diskstats and no /sys/block (NotImplementedError is a RuntimeError)
        return (None, None)
    return (None, None) if counters is None else (counters.read_bytes, counters.write_bytes)


def _less(now: tuple[int | None, ...], then: tuple[int | None, ...]) -> tuple[int | None, ...]:
    return tuple(a - b if a is not None and b is not None else None for a, b in zip(now, then, strict=True))


def _busy(then: Any, now: Any) -> float:
    idle = now.idle + getattr(now, "iowait", 0.0) - then.idle - getattr(then, "iowait", 0.0)
    total = _total(now) - _total(then)
    return 1.0 - _share(idle, total) if total > 0 else 0.0


def _share(part: float, total: float) -> float:
    """``part / total`` within 0..1: the kernel's counters of one CPU may step back by a tick."""
    return min(1.0, max(0.0, part / total)) if total > 0 else 0.0


def _total(times: Any) -> float:
    """Seconds of one CPU; guests' time is part of user and nice already."""
    return float(sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0))
