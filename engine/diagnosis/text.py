"""A diagnosis for people: the verdict first, then the stages, what to change, and what to know about the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from .diagnose import Diagnosis


def text_of(found: Diagnosis) -> str:
    """Plain lines."""
    whole = f"whole: {found.throughput:,.1f} images/s, {1e3 * found.cpu_s:.2f} CPU-ms/image"
    lines = [
        found.verdict,
        "",
        f"{whole}; the stages alone let expect {found.modelled:,.1f} images/s",
        *_aligned([("stage", "ms/image", "CPU-ms/image", "of the CPU time", "images/s alone"), *_stage_cells(found)]),
    ]
    lines += [f"  {stage.name}: {stage.absent}" for stage in found.stages if stage.cost is None]
    if found.advice:
        advice = [
            (item.change, f"{item.throughput:,.1f} images/s", f"{item.gain:.2f}x", "" if item.options else "no option")
            for item in found.advice
        ]
        lines += ["what to change, and what to expect:", *_aligned(advice)]
    lines += [f"note: {note}" for note in found.notes]
    lines.append("with " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found.settings.items()))
    return "\n".join(lines)


def _stage_cells(found: Diagnosis) -> list[tuple[str, ...]]:
    return [
        (
            stage.name,
            f"{1e3 * stage.cost.wall_s:.3f}",
            f"{1e3 * stage.cost.cpu_s:.3f}",
            f"{100 * stage.cpu_share:.0f} %",
            f"{stage.throughput:,.0f}",
        )
        for stage in found.stages
        if stage.cost is not None
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as columns, the first one to the left, all others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
