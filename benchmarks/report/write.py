"""``vdali report``: one self-contained page, HTML or Markdown, from a run's folder or a benchmark's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...engine.errors import UsageError, VdaliError
from ...engine.sinks.run_dir import RUN_FILE
from ..bench_file import damage_told
from ..cost import Cost
from .bench import page_of_bench
from .html import html_of
from .input import read_document, read_run
from .markdown import markdown_of
from .page import Page
from .run import page_of_run

_RENDERERS: dict[str, Callable[[Page], str]] = {".html": html_of, ".htm": html_of, ".md": markdown_of}


def write_report(
    source: Path, output: Path, *, cost: Cost | None = None, diagnosis: Mapping[str, Any] | Path | None = None
) -> Path:
    """Write the report of ``source``, a folder OUT or a benchmark's JSON file, to ``output`` and return its path.

    ``output`` ends in .html or .md. ``diagnosis`` (a Diagnosis' JSON form, or a file of it) gives a run's report its
    verdict. Raises UsageError for another ending or a file of another version, InputNotFoundError where there is
    nothing to report, VdaliError where ``output`` cannot be written.
    """
    render = _RENDERERS.get(output.suffix.lower())
    if render is None:
        raise UsageError(f"A report is written as .html or .md, got {output.name}. Choose one of these endings.")
    costs = cost.to_json() if cost is not None else None
    if source.is_file():
        document = read_document(source)
        with damage_told(source):
            text = render(page_of_bench(document, source.name, cost=costs))
    else:
        record = read_run(source)
        found = read_document(diagnosis) if isinstance(diagnosis, Path) else diagnosis
        with damage_told(source / RUN_FILE if not isinstance(diagnosis, Path) else diagnosis):
            text = render(page_of_run(record, diagnosis=found, cost=costs))
    try:
        output.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise VdaliError(f"Cannot write {output}: {error.strerror or error}. Choose another place.") from error
    return output
