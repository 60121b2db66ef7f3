"""The one place that turns a run directory into the sink of its format."""

from __future__ import annotations

from .npy import NpySink
from .parquet import ParquetSink, PartOptions
from .run_dir import OutputFormat, RunDirectory

_SINKS = {OutputFormat.PARQUET: ParquetSink, OutputFormat.NPY: NpySink}


def open_sink(run: RunDirectory, options: PartOptions | None = None) -> ParquetSink:
    """Sink for ``run``, with what its earlier sessions committed; raises OutputError on an unreadable part."""
    return _SINKS[run.output_format](
        run.path,
        spec=run.spec,
        fingerprint=run.fingerprint,
        options=options,
        retry_failures=run.retry_failures,
    )
