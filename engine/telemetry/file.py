"""``OUT/telemetry.parquet``: one line for each look at the machine during a run.

=============================== ==================================================================================
session                         number of the session in run.json, from 1
time                            when, UTC
elapsed_s                       seconds since this session's telemetry began
rows, failures                  samples that ended in this session so far
stage_wall_s, stage_cpu_s       seconds spent in each stage so far, summed over lanes
cpu_busy, process_..., disk_... see ``host.HostSample``
gpus                            one ``gpu.GpuSample`` for each GPU, none without an NVIDIA driver
=============================== ==================================================================================

Counts, seconds and bytes add up from the session's start, so a lost line costs resolution and nothing else. A
session keeps at most MAX_SAMPLES lines: when they are full every second one goes and the interval doubles.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..sinks.parts import write_durably, writing
from ..stages import StageTime
from .gpu import GpuSample
from .host import HostSample

MAX_SAMPLES = 16_384
"""Lines kept of one session: 4.5 hours at one a second, written in about 30 ms."""

_MAX_EARLIER = 4 * MAX_SAMPLES
_SECONDS = pa.map_(pa.string(), pa.float64())
_GPU = pa.struct(
    [
        ("index", pa.int32()),
        ("name", pa.string()),
        ("utilisation", pa.float32()),
        ("memory_activity", pa.float32()),
        ("memory_used_bytes", pa.int64()),
        ("process_memory_bytes", pa.int64()),
        ("process_utilisation", pa.float32()),
        ("power_w", pa.float32()),
        ("pcie_tx_bytes_per_s", pa.int64()),
        ("pcie_rx_bytes_per_s", pa.int64()),
        ("sm_clock_hz", pa.int64()),
        ("memory_clock_hz", pa.int64()),
        ("video_decoder_utilisation", pa.float32()),
        ("jpeg_decoder_utilisation", pa.float32()),
    ]
)
SCHEMA = pa.schema(
    [
        ("session", pa.int32()),
        ("time", pa.timestamp("ms", tz="UTC")),
        ("elapsed_s", pa.float64()),
        ("rows", pa.int64()),
        ("failures", pa.int64()),
        ("stage_wall_s", _SECONDS),
        ("stage_cpu_s", _SECONDS),
        ("cpu_busy", pa.list_(pa.float32())),
        ("cpu_iowait", pa.float32()),
        ("process_cpu_s", pa.float64()),
        ("process_rss_bytes", pa.int64()),
        ("process_threads", pa.int32()),
        ("process_open_files", pa.int32()),
        ("process_read_bytes", pa.int64()),
        ("process_write_bytes", pa.int64()),
        ("process_requested_bytes", pa.int64()),
        ("disk_read_bytes", pa.int64()),
        ("disk_write_bytes", pa.int64()),
        ("gpus", pa.list_(_GPU)),
    ]
)


@dataclass(frozen=True, slots=True)
class TelemetrySample:
    """One line: when, how far the run was, what host and GPUs did. ``time_s`` is seconds since 1970, UTC."""

    session: int
    time_s: float
    elapsed_s: float
    rows: int
    failures: int
    stages: Mapping[str, StageTime]
    host: HostSample
    gpus: Sequence[GpuSample]

    def to_json(self) -> dict[str, Any]:
        """Flat JSON form with the columns of the file; ``time_s`` stands for ``time``."""
        return {
            "session": self.session,
            "time_s": round(self.time_s, 3),
            "elapsed_s": self.elapsed_s,
            "rows": self.rows,
            "failures": self.failures,
            "stage_wall_s": {name: time.wall_s for name, time in self.stages.items()},
            "stage_cpu_s": {name: time.cpu_s for name, time in self.stages.items()},
            **asdict(self.host),
            "gpus": [asdict(gpu) for gpu in self.gpus],
        }


class TelemetryFile:
    """The file as one session writes it: lines of earlier sessions stay, those of this session follow.

    Every write replaces the whole file at once, so a kill leaves the lines of the write before.
    """

    def __init__(self, path: Path, session: int) -> None:
        """Take up ``path``; a file that is not readable is set aside, and ``note`` says so."""
        self._path = path
        self.note = ""
        earlier = self._earlier(session)
        while earlier.num_rows > _MAX_EARLIER:
            earlier = _every_second(earlier)
        self._earlier_lines = earlier
        self._lines = SCHEMA.empty_table()

    def write(self, samples: Sequence[TelemetrySample]) -> None:
        """Add ``samples`` and write all durably; raises VdaliError when that fails."""
        self._lines = pa.concat_tables([self._lines, _table(samples)])
        table = pa.concat_tables([self._earlier_lines, self._lines])
        write_durably(self._path, lambda file: pq.write_table(table, file, compression="zstd"))

    def halve(self) -> None:
        """Drop every second line of this session."""
        self._lines = _every_second(self._lines)

    def __len__(self) -> int:
        """Lines of this session that have been written."""
        return int(self._lines.num_rows)

    def _earlier(self, session: int) -> pa.Table:
        if not self._path.exists():
            return SCHEMA.empty_table()
        try:
            table = read_telemetry(self._path)
        except (OSError, pa.ArrowException) as error:
            aside = self._path.with_suffix(".unreadable.parquet")
            with writing(aside):
                os.replace(self._path, aside)
            self.note = f"{self._path} was not readable ({_one_line(error)}); it is now {aside.name}"
            return SCHEMA.empty_table()
        return table.filter(pc.less(table["session"], session))


def read_telemetry(path: Path) -> pa.Table:
    """All lines of a telemetry file; raises OSError or pyarrow.ArrowException when it is not one."""
    table = pq.read_table(path, partitioning=None)
    if not table.schema.equals(SCHEMA):
        raise pa.ArrowInvalid("its columns are not those of this version's telemetry")
    return table


def _table(samples: Sequence[TelemetrySample]) -> pa.Table:
    return pa.Table.from_pylist([_line(sample) for sample in samples], schema=SCHEMA)


def _line(sample: TelemetrySample) -> dict[str, Any]:
    values = sample.to_json()
    values["time"] = round(1e3 * values.pop("time_s"))
    for name in ("stage_wall_s", "stage_cpu_s"):
        values[name] = list(values[name].items())
    return values


def _every_second(table: pa.Table) -> pa.Table:
    return table.take(pa.array(range(1, table.num_rows, 2), pa.int64()))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
