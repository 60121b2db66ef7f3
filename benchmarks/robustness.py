"""What bad pictures cost: a long run with 5 % of them against the same run without, in time and in memory."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api import run
from ..engine.report import Progress
from .measure import Spread, ratio

BAD_EVERY = 20
WARM = 4000
"""Samples after which memory has settled: buffers, first parts, the engine's arena."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """One run: wall clock and CPU of the job itself (not of loading), resident memory at WARM and its peak after."""

    wall_s: float
    cpu_s: float
    warm_bytes: int
    later_bytes: int
    failures: int


def measure_robustness(model: Path, files: Sequence[Path], rounds: int, *, count: int = 20_000) -> dict[str, Any]:
    """Clean runs and runs where one entry in 20 is bad (cut, empty, no picture), in alternation, each in a process.

    Each run reads ``count`` links (more than WARM) to ``files`` and writes Parquet. Ratios are bad over clean, pair
    by pair; a bad entry costs no inference, so below 1 is possible. Growth is resident bytes, peak after WARM samples
    minus peak before.
    """
    passes: dict[str, list[_Pass]] = {"clean": [], "bad": []}
    with tempfile.TemporaryDirectory(prefix="vdali-robustness-") as name:
        folder = Path(name)
        inputs = {kind: _links(folder / kind, files, count, bad=kind == "bad") for kind in passes}
        for number in range(rounds):
            for kind, entries in inputs.items():
                passes[kind].append(_in_a_process(model, entries, folder / f"out-{kind}-{number}"))
    return {
        "images": count,
        "bad": passes["bad"][0].failures,
        "runs": {kind: _summary(results, count) for kind, results in passes.items()},
        "wall_bad_over_clean": _ratio(passes, "wall_s"),
        "cpu_bad_over_clean": _ratio(passes, "cpu_s"),
    }


def _summary(passes: Sequence[_Pass], count: int) -> dict[str, Any]:
    return {
        "throughput_samples_per_s": Spread.of([count / one.wall_s for one in passes]).to_json(),
        "cpu_ms_per_sample": Spread.of([1e3 * one.cpu_s / count for one in passes]).to_json(),
        "rss_growth_bytes": Spread.of([one.later_bytes - one.warm_bytes for one in passes]).to_json(),
        "rss_peak_bytes": max(max(one.warm_bytes, one.later_bytes) for one in passes),
    }


def _ratio(passes: dict[str, list[_Pass]], name: str) -> dict[str, float]:
    return ratio(*([getattr(one, name) for one in passes[kind]] for kind in ("bad", "clean"))).to_json()


def _links(folder: Path, files: Sequence[Path], count: int, *, bad: bool) -> Path:
    """Folder of ``count`` links to ``files``; with ``bad``, one in BAD_EVERY leads to no whole picture."""
    broken = folder.with_name(f"{folder.name}-files")
    broken.mkdir(parents=True)
    folder.mkdir()
    whole = files[0].read_bytes()
    for number, data in enumerate((b"", whole[: len(whole) // 2], b"<html>404</html>", whole[:20])):
        (broken / f"{number}.jpg").write_bytes(data)
    for number in range(count):
        is_bad = bad and number % BAD_EVERY == 7
        target = broken / f"{number // BAD_EVERY % 4}.jpg" if is_bad else files[number % len(files)].absolute()
        (folder / f"{number:06d}.jpg").symlink_to(target)
    return folder


def _in_a_process(model: Path, inputs: Path, out: Path) -> _Pass:
    """One run in a fresh process, so that memory of an earlier one is not counted."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_one_pass, (model, inputs, out))


def _one_pass(model: Path, inputs: Path, out: Path) -> _Pass:
    peaks = [0, 0]  # before WARM, after

    def sample(progress: Progress) -> None:
        after = progress.ended > WARM
        peaks[after] = max(peaks[after], _resident_bytes())

    report = run(inputs, model=model, out=out, on_progress=sample)
    return _Pass(
        wall_s=report.progress.elapsed_s,
        cpu_s=report.cpu_s,
        warm_bytes=peaks[0],
        later_bytes=peaks[1],
        failures=report.failures_total,
    )


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
