"""``python -m vdali.benchmarks.gpu_check``: proves on a GPU what only a GPU can prove, then measures.

Ends with 0 when all that ran has passed, 1 when something failed, 4 when there is no GPU. What is not installed is
said, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .driver import NO_GPU_STATUS, why_no_gpu
from .isolate import PartReport, run_part
from .parts import PARTS, TOTAL_LIMIT_S, Part, part_named
from .record import run_checks
from .table import lines_of, summary

FAILED_STATUS = 1


def main(words: Sequence[str] | None = None, *, run: Callable[..., PartReport] = run_part) -> int:
    options = _options(words)
    if options.list:
        for part in PARTS:
            print(f"{part.name:<14} {part.title}")
        return 0
    reason = why_no_gpu()
    if reason:
        print(reason, file=sys.stderr)
        return NO_GPU_STATUS
    if options.child:
        run_checks(part_named(options.child).checks(), options.results)
        return 0
    parts = [part_named(name) for name in options.part] or list(PARTS)
    machine = _machine()
    if not machine["gpus"]:
        print(machine["line"], file=sys.stderr)
        return NO_GPU_STATUS
    print(machine["line"], flush=True)
    reports = run_parts(parts, total_s=options.seconds, tell=lambda line: print(line, flush=True), run=run)
    print(summary(reports))
    if options.json is not None:
        document = {"machine": machine, "parts": [report.to_json() for report in reports]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"all of it: {options.json}")
    return FAILED_STATUS if any(report.status.is_bad for report in reports) else 0


def run_parts(
    parts: Sequence[Part],
    *,
    total_s: float,
    tell: Callable[[str], None],
    run: Callable[..., PartReport] = run_part,
) -> list[PartReport]:
    """Each part in turn, in ``total_s`` together; ``tell`` gets the lines of each as it ends."""
    until_s = time.monotonic() + total_s
    reports: list[PartReport] = []
    for part in parts:
        report = run(part, limit_s=min(part.limit_s, until_s - time.monotonic()))
        reports.append(report)
        for line in lines_of(report):
            tell(line)
    return reports


def _machine() -> dict[str, Any]:
    """What this is run on, as the project itself sees it; ``line`` is for people, and without ``gpus`` says why."""
    try:
        from ...engine.gpu_probe import probe_gpu

        found = probe_gpu()
    except ImportError as error:
        return {
            "line": f"The driver knows a GPU, but it cannot be used: {error}. Install vdali's packages.",
            "gpus": [],
        }
    if not found.count:
        return {"line": f"The driver knows a GPU, but it cannot be used: {found.reason}. {found.advice}", "gpus": []}
    names = ", ".join(gpu.name for gpu in found.gpus)
    line = f"{names}; driver {found.driver or 'unknown'}, CUDA {found.cuda or 'unknown'}"
    return {"line": line, "driver": found.driver, "cuda": found.cuda, "gpus": [asdict(gpu) for gpu in found.gpus]}


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description="Check and measure all that needs a GPU.")
    names = [part.name for part in PARTS]
    parser.add_argument("--part", action="append", choices=names, default=[], help="only this part; may be repeated")
    parser.add_argument("--json", type=Path, help="file for all that was found, as one JSON document")
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_LIMIT_S, help="for all parts together (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("results", nargs="?", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
