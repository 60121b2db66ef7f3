"""CPU time and memory of a process together with its workers, and the busy share of a GPU."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from ..engine.cpu import cpu_allowance

_LEAST_S = 0.5
"""Seconds below which CPU time, counted in ticks of 10 ms, tells nothing of other processes."""

_INTERVAL_S = 0.05
_WATCHING_SHARE = 0.1


def cpu_s() -> float:
    """CPU seconds that this process and its workers, living or ended, have used so far."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for worker in _descendants(psutil.Process()):
        try:
            times = worker.cpu_times()
        except psutil.NoSuchProcess:  # its time is now among that of the ended children of its parent
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def busy_s() -> float | None:
    """CPU seconds that all processes have used of the CPUs that this one may run on; None where that cannot be told.

    With a control group's quota it cannot: there other CPUs may be taken as well.
    """
    allowance = cpu_allowance()
    if allowance.quota is not None or not hasattr(os, "sched_getaffinity"):
        return None
    times = psutil.cpu_times(percpu=True)
    mine = [times[number] for number in os.sched_getaffinity(0) if number < len(times)]
    idle = sum(cpu.idle + getattr(cpu, "iowait", 0.0) for cpu in mine)
    total = sum(sum(cpu) - getattr(cpu, "guest", 0.0) - getattr(cpu, "guest_nice", 0.0) for cpu in mine)
    return float(total - idle)


class OthersWatch:
    """What other processes use of the CPUs from now on."""

    def __init__(self) -> None:
        self._started_s, self._busy_s = time.perf_counter(), busy_s()

    def share(self, own_s: float) -> float | None:
        """Share (0..1) of the CPUs that they have used so far, beside our ``own_s`` CPU seconds.

        None where that cannot be told.
        """
        elapsed_s, now_s = time.perf_counter() - self._started_s, busy_s()
        if self._busy_s is None or now_s is None or elapsed_s < _LEAST_S:
            return None
        return min(1.0, max(0.0, (now_s - self._busy_s - own_s) / (elapsed_s * cpu_allowance().affinity)))


def memory_bytes(process: psutil.Process) -> int:
    """Memory of a process and its workers; what several of them share counts once where the system tells (Linux)."""
    total = 0
    for member in (process, *_descendants(process)):
        try:
            info = member.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        total += getattr(info, "pss", 0) or info.rss
    return total


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def workers_of(pid: int) -> list[psutil.Process]:
    """Processes that ``pid`` has started, and theirs."""
    try:
        return _descendants(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return []


@dataclass(slots=True)
class Peak:
    """Largest memory seen so far, in bytes."""

    bytes_: int = 0


@contextmanager
def watched_memory(pid: int) -> Iterator[Peak]:
    """Peak of process ``pid`` and its workers while the block runs, looked at up to 20 times a second.

    Looking costs CPU time (the kernel walks page tables), so nothing should be timed meanwhile.
    """
    process, peak, ended = psutil.Process(pid), Peak(), threading.Event()

    def watch() -> None:
        pause_s = 0.0
        while not ended.wait(pause_s):
            started_s = time.perf_counter()
            peak.bytes_ = max(peak.bytes_, memory_bytes(process))
            pause_s = max(_INTERVAL_S, (time.perf_counter() - started_s) / _WATCHING_SHARE)

    thread = threading.Thread(target=watch, name="memory-watch", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()
