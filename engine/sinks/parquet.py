"""Rows and failures as Parquet part files: OUT/rows/part-*.parquet and OUT/failures/part-*.parquet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..batch import Failure, Rows, Sample
from ..errors import OutputError
from ..spec import ModelSpec
from .done import DoneIndex, EntryKeys
from .parts import (
    FAILURES,
    ROWS,
    delete_durably,
    make_folder,
    part_name,
    parts_of,
    reading,
    remove_temporaries,
    row_count,
    write_durably,
)
from .schema import batch_from_failures, batch_from_rows, failures_schema, parquet_options, rows_schema, width_of


@dataclass(frozen=True, slots=True)
class PartOptions:
    """When a part is committed: after so many rows and failures, seconds since the first, or bytes in memory.

    Time is looked at when a batch is written.
    """

    rows: int = 4096
    seconds: float = 60.0
    bytes: int = 256 << 20


@dataclass(slots=True)
class _Pending:
    """What part ``number`` will hold."""

    number: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += batch.nbytes


class ParquetSink:
    """Sink that writes Parquet.

    Opening it takes up an earlier session of the same run: half-written files go, failures worth
    another try go (the retryable ones, or all with ``retry_failures``), and all that then stands in
    the parts is done. Rows of a commit become durable before its failures. A commit that fails
    raises VdaliError and may be repeated: it writes the same part again.
    """

    rows_suffix: ClassVar[str] = "parquet"
    """Suffix of the file whose presence says that a part of rows is committed."""

    def __init__(
        self,
        out: Path,
        *,
        spec: ModelSpec,
        fingerprint: str,
        options: PartOptions | None = None,
        retry_failures: bool = False,
    ) -> None:
        """Open ``out``, created where absent; raises OutputError when a part file is not readable."""
        self._spec = spec
        self._fingerprint = fingerprint
        self._options = options or PartOptions()
        self._rows_folder = out / ROWS
        self._failures_folder = out / FAILURES
        self._failures_schema = failures_schema(spec, fingerprint)
        for folder in (self._rows_folder, self._failures_folder):
            make_folder(folder)
            remove_temporaries(folder)
        self._recover_rows()
        drop_failures(self._failures_folder, every=retry_failures)
        rows = parts_of(self._rows_folder, self.rows_suffix)
        failures = parts_of(self._failures_folder, "parquet")
        self._earlier = _metadata_of(rows[max(rows)]) if rows else None
        self._schema: pa.Schema | None = None
        self._done = DoneIndex.from_parts(rows.values(), failures.values())
        self._keys = EntryKeys()
        self._rows = _Pending(max(rows, default=-1) + 1)
        self._failures = _Pending(max(failures, default=-1) + 1)
        self._pending_since: float | None = None

    @property
    def done_count(self) -> int:
        """Number of entries that earlier sessions have committed."""
        return len(self._done)

    def is_done(self, entry: Sample | Failure) -> bool:
        if not len(self._done):
            return False
        return self._keys.key_of(entry.id, entry.kind if isinstance(entry, Failure) else None) in self._done

    def write(self, rows: Rows, failures: Sequence[Failure]) -> None:
        """Take one batch; raises OutputError when its rows do not fit to those of earlier sessions."""
        if self._pending_since is None:
            self._pending_since = time.monotonic()
        if len(rows):
            self._rows.add(batch_from_rows(rows, self._schema_for(rows)))
        if failures:
            self._failures.add(batch_from_failures(failures, self._failures_schema))
        if self._is_due():
            self._flush()

    def commit(self) -> None:
        """Make everything written so far durable.

        A folder without any part gets one of zero rows, so that it reads as an empty table; the next
        part takes its place.
        """
        self._flush()
        if self._rows.number == 0:
            schema = self._schema or rows_schema(self._spec, self._fingerprint, None)
            self._write_rows(0, schema.empty_table())
        if self._failures.number == 0:
            self._write_failures(0, self._failures_schema.empty_table())

    def close(self) -> None:
        self._rows = _Pending(self._rows.number)
        self._failures = _Pending(self._failures.number)

    def _is_due(self) -> bool:
        options = self._options
        return (
            self._rows.rows + self._failures.rows >= options.rows
            or self._rows.bytes + self._failures.bytes >= options.bytes
            or (self._pending_since is not None and time.monotonic() - self._pending_since >= options.seconds)
        )

    def _flush(self) -> None:
        # Each part is one assignment away from its successor: an interrupt in between writes it once more, under
        # the same number, and can neither lose nor repeat a row.
        if self._rows.batches:
            self._write_rows(self._rows.number, pa.Table.from_batches(self._rows.batches))
            self._rows = _Pending(self._rows.number + 1)
        if self._failures.batches:
            self._write_failures(self._failures.number, pa.Table.from_batches(self._failures.batches))
            self._failures = _Pending(self._failures.number + 1)
        self._pending_since = None

    def _schema_for(self, rows: Rows) -> pa.Schema:
        if self._schema is None:
            schema = rows_schema(self._spec, self._fingerprint, width_of(self._spec, rows))
            if self._earlier is not None and self._earlier != schema.metadata:
                raise OutputError(_mismatch(self._rows_folder, self._earlier, schema.metadata))
            self._schema = schema
        return self._schema

    def _write_rows(self, number: int, table: pa.Table) -> None:
        write_parquet(self._rows_folder / part_name(number, self.rows_suffix), table)

    def _write_failures(self, number: int, table: pa.Table) -> None:
        write_parquet(self._failures_folder / part_name(number, "parquet"), table)

    def _recover_rows(self) -> None:
        for path in parts_of(self._rows_folder, self.rows_suffix).values():
            if row_count(path) == 0:
                delete_durably(path)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write ``table`` durably as one Parquet file."""
    write_durably(path, lambda file: pq.write_table(table, file, **parquet_options(table.schema)))


def drop_failures(folder: Path, *, every: bool) -> None:
    """Delete failures that are to be tried again, the retryable ones or ``every`` one, so that they are not done."""
    for path in parts_of(folder, "parquet").values():
        with reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        kept = table.slice(0, 0) if every else table.filter(pc.invert(table["retryable"]))
        if kept.num_rows == 0:
            delete_durably(path)
        elif kept.num_rows < table.num_rows:
            write_parquet(path, kept)


def _metadata_of(path: Path) -> dict[bytes, bytes]:
    with reading(path):
        return dict(pq.read_schema(path).metadata or {})


def _mismatch(folder: Path, earlier: dict[bytes, bytes], now: dict[bytes, bytes]) -> str:
    differences = [
        f"{key.decode()} is {earlier.get(key, b'absent').decode()!r} there and {now.get(key, b'absent').decode()!r} now"
        for key in sorted(earlier.keys() | now.keys())
        if earlier.get(key) != now.get(key)
    ]
    return f"The parts in {folder} belong to another run: {'; '.join(differences)}. Choose another output folder."
