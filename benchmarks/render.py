"""A comparison for people: a table, and below it one sentence for each system that vdali was held against."""

from __future__ import annotations

from collections.abc import Sequence

from .comparison import LOADING, ComparisonReport, Status, SystemRow, Winner
from .measure import Spread

_HEADS = (
    "",
    "images/s",
    "CPU-ms/image",
    "batch p50/p99 ms",
    "memory MiB",
    "worst image",
    "vdali over it",
    "its CPU-ms over vdali's",
)
MUCH_ELSEWHERE = 0.1
"""Share of the CPUs that others may use before a comparison is called disturbed."""

_GPU_HEADS = ("GPU busy", "GPU MiB")


def render(report: ComparisonReport) -> str:
    """Table, descriptions and verdicts as plain lines."""
    title = (
        f"{report.model}, {report.task}, weights {report.weights}: {report.images} images "
        f"({report.input_bytes / 1e6:.1f} MB), batch {report.batch_size}, {report.rounds} alternating rounds on "
        f"{report.device}, {report.cpus} CPUs; median (min to max)"
    )
    on_gpu = report.device != "cpu"
    heads = _HEADS + _GPU_HEADS * on_gpu
    table = [heads, *([*_cells(row, report), *_gpu_cells(row)][: len(heads)] for row in report.rows)]
    notes = [f"  {row.system}: {row.description}" for row in report.rows if row.description]
    return "\n".join([title, *_aligned(table), *notes, *verdicts(report)])


def verdicts(report: ComparisonReport) -> list[str]:
    """One sentence for each row that vdali was held against, and for each that has no numbers or a wrong answer."""
    sentences = []
    for row in report.rows:
        sentence = _verdict(row, report)
        if sentence:
            sentences.append(sentence)
    if report.reference is None:
        sentences.append("Fewer than two systems gave an answer: nothing was compared.")
    if report.task == LOADING:
        sentences += _loader_verdict(report)
    others = report.cpus_used_by_others_share
    if others is not None and others > MUCH_ELSEWHERE:
        sentences.append(
            f"Other processes used {100 * others:.0f} % of the CPUs during the rounds: on a quiet machine the ratios "
            "may be far from these (threads that wait for each other suffer most). Measure again."
        )
    return sentences


def _loader_verdict(report: ComparisonReport) -> list[str]:
    """CPU time against the best other loader and the reference, and how far the pixels are from the reference."""
    ours = next(row for row in report.rows if row.system == report.ours)
    rivals = {
        row.system: row.cpu_of_this_over_ours
        for row in report.rows
        if row.competes and row.status is Status.OK and row.cpu_of_this_over_ours is not None
    }
    if not rivals or ours.status is not Status.OK:
        return []
    best = min(rivals, key=lambda name: rivals[name].median)
    texts = [f"the best other loader ({best}) takes {rivals[best].text(2)} times"]
    if report.reference in rivals and report.reference != best:
        texts.append(f"{report.reference} {rivals[report.reference].text(2)} times")
    pixels = ours.worst_difference_levels
    apart = f"; its pixels are at most {pixels:.2f} levels (mean of an image) away" if pixels is not None else ""
    return [f"In CPU-ms an image {', and '.join(texts)} what {report.ours} takes{apart}."]


def _verdict(row: SystemRow, report: ComparisonReport) -> str:
    if row.status is Status.ABSENT:
        return f"{row.system} is not installed here: {row.note}"
    if row.status is Status.FAILED:
        return f"{row.system} failed: {row.note}"
    if row.status is Status.WRONG:
        return f"{row.system} gives a WRONG answer ({row.note}): its speed counts for nothing."
    ours = next(other for other in report.rows if other.system == report.ours)
    if not row.competes or row.ours_over_this is None or ours.status is not Status.OK:
        return ""
    winner = {
        Winner.OURS: f"{ours.system} wins",
        Winner.THEIRS: f"{row.system} WINS here",
        Winner.NEITHER: "No clear winner",
    }[row.winner]
    cpu = row.cpu_of_this_over_ours
    less = f", and {cpu.text(2)} times as many per CPU second" if cpu is not None else ""
    return f"{winner}: {ours.system} does {row.ours_over_this.text(2)} times the images/s of {row.system}{less}."


def _cells(row: SystemRow, report: ComparisonReport) -> list[str]:
    if row.throughput is None:
        return [row.system, "not installed" if row.status is Status.ABSENT else "failed", *[""] * (len(_HEADS) - 2)]
    return [
        row.system,
        _spread(row.throughput, 1),
        _spread(row.cpu_ms, 2),
        _latency(row),
        f"{(row.peak_memory_bytes or 0) / 2**20:.0f}",
        _agreement(row, report),
        _spread(row.ours_over_this, 2),
        _spread(row.cpu_of_this_over_ours, 2),
    ]


def _gpu_cells(row: SystemRow) -> list[str]:
    busy = f"{100 * row.gpu_utilisation:.0f} %" if row.gpu_utilisation is not None else "?"
    return [busy, f"{row.gpu_memory_bytes / 2**20:.0f}" if row.gpu_memory_bytes is not None else "?"]


def _latency(row: SystemRow) -> str:
    if row.latency_p50_s is None or row.latency_p99_s is None:
        return "?"
    return f"{1e3 * row.latency_p50_s:.0f}/{1e3 * row.latency_p99_s:.0f}"


def _agreement(row: SystemRow, report: ComparisonReport) -> str:
    if row.system == report.reference:
        return "reference"
    mark = "WRONG" if row.status is Status.WRONG else ""
    if row.worst_difference_levels is not None:
        return f"{row.worst_difference_levels:.2f} levels {mark}"
    return f"cosine {row.lowest_cosine:.5f} {mark}" if row.lowest_cosine is not None else mark


def _spread(spread: Spread | None, digits: int) -> str:
    return spread.text(digits) if spread is not None else ""


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
