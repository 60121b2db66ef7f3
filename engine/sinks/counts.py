"""Counts read off part files, never off a separate claim."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from .parts import FAILURES, ROWS, parts_of, reading, row_count


@dataclass(frozen=True, slots=True)
class PartCounts:
    """What part files hold; ``failures_by_kind`` counts ``stage/kind``."""

    rows: int
    failures: int
    failures_by_kind: Counter[str] = field(default_factory=Counter)
    retryable: int = 0

    def to_json(self) -> dict[str, Any]:
        by_kind = dict(sorted(self.failures_by_kind.items()))
        return {"rows": self.rows, "failures": self.failures, "failures_by_kind": by_kind}


def count_parts(out: Path, rows_suffix: str) -> PartCounts:
    """Count all parts of ``out``; raises OutputError when one is not readable."""
    rows = sum(row_count(path) for path in parts_of(out / ROWS, rows_suffix).values())
    by_kind: Counter[str] = Counter()
    retryable = 0
    for path in parts_of(out / FAILURES, "parquet").values():
        with reading(path), pq.ParquetFile(path) as file:
            table = file.read(columns=["stage", "kind", "retryable"])
        stages, kinds = table["stage"].to_pylist(), table["kind"].to_pylist()
        by_kind.update(f"{stage}/{kind}" for stage, kind in zip(stages, kinds, strict=True))
        retryable += sum(table["retryable"].to_pylist())
    return PartCounts(rows, by_kind.total(), by_kind, retryable)
