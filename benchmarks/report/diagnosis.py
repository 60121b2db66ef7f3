"""Sections about where time goes: from a diagnosis, or from the stage times of a run's sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .input import RunRecord
from .page import Bar, Bars, Block, Section, Table, Text
from .words import NOTHING, number, percent

MUCH_WAITING = 0.3
_PARTS = ("on the CPU", "off the CPU (waiting, or not given one)")
_STAGE_NAMES = {"infer": "engine"}
_OUTPUT = ("rows", "sink")
_INPUT = ("listing", "read", "decode")


def diagnosis_sections(diagnosis: Mapping[str, Any]) -> list[Section]:
    """Stages as bars, and what to change."""
    stages = diagnosis.get("stages") or []
    bars = [_stage_bar(stage) for stage in stages if "wall_ms_per_sample" in stage]
    absent = [f"{stage['name']}: {stage['absent']}." for stage in stages if stage.get("absent")]
    blocks: list[Block] = [Bars(bars, parts=_PARTS)] if bars else []
    if absent:
        blocks.append(Text(absent))
    sections = [Section("Stages alone, time for one image", blocks)] if blocks else []
    advice = diagnosis.get("advice") or []
    if advice:
        rows = [
            [
                str(item["change"]),
                number(item["predicted_throughput_samples_per_s"]),
                f"{item['predicted_gain']:.2f}x",
                "an option" if item.get("options") else "machine, files or model",
            ]
            for item in advice
        ]
        table = Table(["change", "predicted images/s", "gain", "kind"], rows, frozenset({0}))
        sections.append(Section("What to change", [table]))
    return sections


def stages_of_run(run: RunRecord) -> Section | None:
    """Time of one image in each stage of the lanes and in the sink, over all timed sessions."""
    if not run.ended:
        return None
    times = _stage_times(run)
    bars = [
        Bar(name, wall, f"{number(1e3 * wall / run.ended)} ms an image, {percent(_share(cpu, wall))} on the CPU", cpu)
        for name, (wall, cpu) in times.items()
    ]
    sink_s = sum(session.get("sink_s") or 0.0 for session in run.timed_sessions)
    bars.append(Bar("sink", sink_s, f"{number(1e3 * sink_s / run.ended)} ms an image, beside the lanes"))
    return Section("Where the time went", [Bars(bars, parts=_PARTS)])


def verdict_of_run(run: RunRecord) -> str:
    """One sentence from what the sessions recorded; a diagnosis says more."""
    if not run.ended and run.record.get("status") == "running":
        return "No session of this run has told what it did (it is running, or was killed), so there is no rate."
    if not run.ended:
        return "No image ended in this run, so nothing was measured."
    cpu_ms = 1e3 * sum(session.get("cpu_s") or 0.0 for session in run.timed_sessions) / run.ended
    rate = f"{number(run.throughput)} images/s, {number(cpu_ms)} CPU-ms an image"
    return f"{_bound(run)}; {rate}. `vdali diagnose` measures each stage alone and predicts what a change gives."


def _bound(run: RunRecord) -> str:
    times = _stage_times(run)
    wall_s = sum(wall for wall, _ in times.values())
    cpu_s = sum(cpu for _, cpu in times.values())
    sink_s = sum(session.get("sink_s") or 0.0 for session in run.timed_sessions)
    if sink_s > run.elapsed_s / 2:
        return f"output-bound: the sink was busy {percent(sink_s / run.elapsed_s)} of the time"
    busy = _gpu_busy(run.telemetry)
    if busy is not None:
        bound = "GPU-bound" if busy >= 0.85 else "input-bound"
        return f"{bound}: the GPU was busy {percent(busy)} of the time"
    read_wall, read_cpu = times.get("read", (0.0, 0.0))
    if wall_s and read_wall - read_cpu > MUCH_WAITING * wall_s:
        return f"input-bound: the lanes waited for bytes {percent((read_wall - read_cpu) / wall_s)} of their time"
    if not cpu_s:
        return "nothing says which stage took the time"
    name, (_, most) = max(times.items(), key=lambda item: item[1][1])
    bound = "input-bound" if name in _INPUT else "output-bound" if name in _OUTPUT else "engine-bound"
    others = ", ".join(f"{n} {percent(c / cpu_s)}" for n, (_, c) in times.items() if n != name)
    return f"{bound}: {name} took {percent(most / cpu_s)} of the lanes' CPU time ({others or NOTHING})"


def _stage_bar(stage: Mapping[str, Any]) -> Bar:
    wall, cpu = stage["wall_ms_per_sample"], stage["cpu_ms_per_sample"]
    alone = number(stage["throughput_alone_samples_per_s"])
    total = max(wall, cpu)
    return Bar(stage["name"], total, f"{number(total)} ms, CPU {number(cpu)}; alone {alone} images/s", cpu)


def _stage_times(run: RunRecord) -> dict[str, tuple[float, float]]:
    """Seconds on the wall clock and on the CPU, by the stage's name."""
    times: dict[str, tuple[float, float]] = {}
    for session in run.timed_sessions:
        for name, time in (session.get("stages") or {}).items():
            shown = _STAGE_NAMES.get(name, name)
            wall, cpu = times.get(shown, (0.0, 0.0))
            times[shown] = (wall + time["wall_s"], cpu + time["cpu_s"])
    return times


def _gpu_busy(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean utilisation of the GPU that this process uses, None where there is none."""
    shares = [
        gpu["utilisation"]
        for line in lines
        for gpu in line["gpus"]
        if gpu["utilisation"] is not None and gpu["process_memory_bytes"]
    ]
    return sum(shares) / len(shares) if shares else None


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0
