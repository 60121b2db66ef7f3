"""Each system in a process of its own, so that threads, allocators and memory of one do not touch another's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from ..engine.errors import DeviceError, VdaliError
from ..engine.telemetry.gpu import open_gpu_sampler
from .systems.interface import MakeSystem, Outputs, System
from .usage import cpu_s, watched_memory, workers_of

_GPU_INTERVAL_S = 0.1
_PATIENCE_S = 30.0
_END_S = 5.0
"""Seconds for a process to put away its workers and semaphores before it is killed."""


class SystemFailedError(VdaliError):
    """A system that could not be built, or failed in a pass; ``absent``: what it needs is not installed."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over the files: wall clock, CPU time of the process and its workers, seconds of each batch.

    ``gpu_utilisation`` (mean, 0..1) and ``gpu_memory_bytes`` (peak of the process) are None without a GPU.
    """

    wall_s: float
    cpu_s: float
    latencies_s: tuple[float, ...]
    gpu_utilisation: float | None = None
    gpu_memory_bytes: int | None = None


class SystemProcess:
    """A system that ``make`` (picklable) builds inside a fresh process. Everything raises SystemFailedError."""

    def __init__(self, make: MakeSystem, files: Sequence[Path], *, gpu: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(make, list(files), gpu, theirs))
        self._is_answering = False
        try:
            with _interrupts_held_back():
                self._process.start()
            theirs.close()
            self.description: str = self._received()
        except BaseException:
            self.close()
            raise

    def run(self) -> Round:
        """One timed pass."""
        value: Round = self._asked("run")
        return value

    def warm_up(self) -> int:
        """One pass that is not timed; returns the peak memory of the process and its workers, in bytes."""
        assert self._process.pid is not None, "the process was started"
        with watched_memory(self._process.pid) as peak:
            self._asked("run")
        return peak.bytes_

    def outputs(self) -> Outputs:
        """Results of the last pass."""
        value: Outputs = self._asked("outputs")
        return value

    def close(self) -> None:
        """Let the process end by itself; end it with its workers where it does not, or works at what nobody awaits."""
        self._pipe.close()
        if self._process.pid is None:
            return
        if not self._is_answering:
            self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            workers = workers_of(self._process.pid)
            self._process.terminate()
            self._process.join(_END_S)
            self._process.kill()
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
        self._process.join()

    def _asked(self, command: str) -> Any:
        try:
            self._pipe.send(command)
        except OSError:
            raise SystemFailedError(self._end()) from None
        return self._received()

    def _received(self) -> Any:
        self._is_answering = True
        try:
            value = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise SystemFailedError(self._end()) from None
        self._is_answering = False
        if isinstance(value, SystemFailedError):
            raise value
        return value

    def _end(self) -> str:
        """How the process ended."""
        self._process.join(_PATIENCE_S)
        status = self._process.exitcode
        if status is not None and status < 0:
            hint = ", perhaps for lack of memory" if -status == signal.SIGKILL else ""
            return f"its process was ended by {signal.Signals(-status).name}{hint}"
        return f"its process ended early with status {status}"


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and a process that is started in it does not hear of it meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(make: MakeSystem, files: Sequence[Path], gpu: int | None, pipe: Connection) -> None:
    # Ctrl-C goes to the parent, which then closes the pipe or ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_on_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        _tell_or_serve(make, files, gpu, pipe)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the parent is gone


def _leave_on_sigterm() -> None:
    """Let SIGTERM end this process with what Python does at an end: semaphores and memory are handed back."""
    owner = os.getpid()

    def leave(*_: object) -> None:
        if os.getpid() != owner:  # a worker that was forked from it
            os._exit(128 + signal.SIGTERM)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody asks any more how its workers end
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)


def _tell_or_serve(make: MakeSystem, files: Sequence[Path], gpu: int | None, pipe: Connection) -> None:
    try:
        system = make(files)
        pipe.send(system.describe())
        _answer(system, gpu, pipe)
        system.close()
    except (EOFError, BrokenPipeError):
        raise
    except (DeviceError, ModuleNotFoundError) as error:
        pipe.send(SystemFailedError(str(error), absent=True))
    except Exception as error:  # whatever a contender raises is its result
        pipe.send(SystemFailedError(_one_line(error)))


def _answer(system: System, gpu: int | None, pipe: Connection) -> None:
    outputs: Outputs = {}
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return
        if command == "run":
            outputs = {}
            started_cpu_s = cpu_s()
            with _watched_gpu(gpu) as seen:
                started_s = time.perf_counter()
                outputs = system.run()
                wall_s = time.perf_counter() - started_s
            pipe.send(Round(wall_s, cpu_s() - started_cpu_s, tuple(system.latencies_s()), *seen.summary()))
        else:
            pipe.send(outputs)


def _one_line(error: Exception) -> str:
    """What an error says; of a DataLoader worker's, which quotes a whole traceback, the end of that."""
    text = str(error)
    if "Traceback (most recent call last)" in text:
        return text.strip().splitlines()[-1]
    text = " ".join(text.split())
    return text if isinstance(error, VdaliError) else f"{type(error).__name__}: {text}"


class _GpuSeen:
    """What was seen of a GPU during a pass."""

    def __init__(self) -> None:
        self.utilisations: list[float] = []
        self.memories: list[int] = []

    def summary(self) -> tuple[float | None, int | None]:
        shares = self.utilisations
        return sum(shares) / len(shares) if shares else None, max(self.memories, default=None)


@contextmanager
def _watched_gpu(ordinal: int | None) -> Iterator[_GpuSeen]:
    seen, ended = _GpuSeen(), threading.Event()
    sampler = open_gpu_sampler([ordinal])[0] if ordinal is not None else None
    if sampler is None:
        yield seen
        return

    def watch() -> None:
        while not ended.wait(_GPU_INTERVAL_S):
            (sample,) = sampler.sample()
            if sample.utilisation is not None:
                seen.utilisations.append(sample.utilisation)
            if sample.process_memory_bytes is not None:
                seen.memories.append(sample.process_memory_bytes)

    thread = threading.Thread(target=watch, name="gpu-watch", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()
        sampler.close()
