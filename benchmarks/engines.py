"""What engines cost to make: seconds of export, conversion, gate and plan, and bytes, in an empty cache; then again."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..engine.plans.flavour import Flavour, find_flavour, load_flavour
from ..engine.plans.options import PlanOptions
from ..export.engines import MODELS, PRECISIONS, EngineMaker, EngineRow
from ..export.plans.cache import PlanCache
from ..kernels.cache import CACHE_VARIABLE

TARGETS = ("sm89", "sm120")
STEPS = ("export", "convert", "gate", "plan")
_HEADS = ("engine", *(f"{step} s" for step in STEPS), "ONNX MiB", "plan MiB", "agreement", "status")


def measure_engines(models: Sequence[str] = MODELS, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Each model at fp32, fp16 and int8, made twice in a cache of its own.

    ``rows`` are those of the first time, ``first_s`` and ``second_s`` what the two took, ``hits`` how many of the
    second time came from the cache. Plans are for TARGETS where TensorRT-RTX builds them; without any TensorRT there
    are none, and the rows say so.
    """
    name = find_flavour()
    flavour = load_flavour(name) if name else None
    with tempfile.TemporaryDirectory(prefix="vdali-bench-") as folder, _cache_in(Path(folder)):
        first, first_s = _made(models, flavour, say)
        second, second_s = _made(models, flavour, say)
    return {
        "rows": [row.to_json() | {"path": None} for row in first],
        "flavour": flavour.title if flavour else None,
        "targets": list(_targets(flavour)),
        "first_s": first_s,
        "second_s": second_s,
        "hits": sum(row.status == "cached" for row in second),
    }


def render_engines(report: dict[str, Any]) -> str:
    """Table, and a sentence on the second time."""
    table = [_HEADS, *(_cells(row) for row in report["rows"])]
    widths = [max(len(line[i]) for line in table) for i in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    built = f"{report['flavour']} for {', '.join(report['targets']) or 'this GPU'}" if report["flavour"] else "no plans"
    title = f"engines made in an empty cache: {built}; {report['first_s']:.0f} s in all"
    again = (
        f"again: {report['hits']} of {len(report['rows'])} from the cache in {report['second_s']:.1f} s, "
        f"{100 * report['second_s'] / report['first_s']:.1f} % of the first time"
    )
    return "\n".join([title, *lines, again])


def _made(
    models: Sequence[str], flavour: Flavour | None, say: Callable[[str], None]
) -> tuple[Sequence[EngineRow], float]:
    maker = EngineMaker(
        images=None,
        flavour=flavour,
        plan_options=PlanOptions(targets=_targets(flavour)),
        plans=PlanCache(),
        report=say,
    )
    started = time.perf_counter()
    rows = list(maker.rows(models, PRECISIONS))
    return rows, time.perf_counter() - started


def _targets(flavour: Flavour | None) -> tuple[str, ...]:
    return TARGETS if flavour is not None and flavour.is_rtx else ()


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    seconds = (f"{row[f'{step}_s']:.1f}" if f"{step}_s" in row else "" for step in STEPS)
    sizes = (f"{row[size] / 2**20:.1f}" if row[size] else "" for size in ("size_bytes", "plan_bytes"))
    status = f"{row['status']}: {row['why']}" if row["why"] and row["status"] == "refused" else row["status"]
    return (f"{row['model']} {row['precision']}", *seconds, *sizes, row["agreement"], status)


@contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Let all caches of this process be in ``folder``."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE_VARIABLE]
        else:
            os.environ[CACHE_VARIABLE] = before
