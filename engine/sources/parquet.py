"""Parquet files with a column of encoded images, or of paths to them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..batch import Failure, Sample
from ..errors import UsageError
from .columns import (
    ID_COLUMNS,
    PATH_COLUMNS,
    columns_seen,
    id_from_value,
    path_from_value,
    pick_column,
)
from .files import is_retryable, reason_of
from .ids import id_from_bytes, member_id, shown
from .location import reader_of
from .url_options import DEFAULT_URL_OPTIONS, UrlOptions

IMAGE_COLUMNS = ("image", "img", "image_bytes", "bytes", "jpg", "jpeg", "png", "webp", "content", "data")
"""Names that are looked at first for encoded images; a single column of bytes is taken whatever its name."""

IMAGE_BATCH_ROWS = 32
PATH_BATCH_ROWS = 4096
"""Rows read at once: few where they hold pictures, since those stay in memory."""

_READ_BUFFER_BYTES = 1 << 20
_ERRORS = (OSError, pa.ArrowException, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class ParquetColumns:
    """Columns that are read: one of ``image`` (bytes, or a struct with bytes) and ``path``, and perhaps ``id``."""

    image: str | None
    path: str | None
    id: str | None

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name in (self.image, self.path, self.id) if name is not None))


class ParquetSource:
    """Images of one Parquet file, in row order, streamed in small batches.

    The column of images holds bytes, or structs {bytes, path} as Hugging Face datasets write them. The
    id is the id column's value; without one, or where it is null, ``NAME::ROW`` (from 0), and for a
    column of paths the path as written. A null image is a failure; so is a file that cannot be read,
    and each row group that is damaged.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        *,
        name: bytes | None = None,
        id_column: str | None = None,
        path_column: str | None = None,
        image_column: str | None = None,
        root: str | os.PathLike[str] | None = None,
        url_options: UrlOptions = DEFAULT_URL_OPTIONS,
    ) -> None:
        typed = os.fsencode(path)
        self.ignored: Counter[str] = Counter()
        self._path = os.path.abspath(typed)
        self._name = typed if name is None else name
        self._asked = ParquetColumns(image_column, path_column, id_column)
        self._root = os.path.abspath(os.fsencode(root)) if root is not None else os.path.dirname(self._path)
        self._url_options = url_options

    def describe(self) -> str:
        return f"Parquet {shown(self._name)}"

    def columns(self) -> ParquetColumns | None:
        """Columns that a pass would read, None for a file that cannot be opened; raises UsageError."""
        try:
            with self._open() as file:
                return choose_columns(file.schema_arrow, self._asked, file=shown(self._name))
        except _ERRORS:
            return None

    def __iter__(self) -> Iterator[Sample | Failure]:
        self.ignored = Counter()
        try:
            file = self._open()
        except _ERRORS as error:
            yield self._lost("shard_unreadable", error)
            return
        with file:
            try:
                columns = choose_columns(file.schema_arrow, self._asked, file=shown(self._name))
            except UsageError as error:
                yield Failure(id_from_bytes(self._name), "source", "no_image_column", str(error))
                return
            yield from self._row_groups(file, columns)

    def _open(self) -> pq.ParquetFile:
        # pre_buffer would hold a whole row group's images at once
        return pq.ParquetFile(
            pa.OSFile(self._path),  # takes any bytes as a name, where ParquetFile itself wants UTF-8
            pre_buffer=False,
            buffer_size=_READ_BUFFER_BYTES,
            page_checksum_verification=True,
        )

    def _row_groups(self, file: pq.ParquetFile, columns: ParquetColumns) -> Iterator[Sample | Failure]:
        end = 0
        for group in range(file.num_row_groups):
            row = end
            end += file.metadata.row_group(group).num_rows
            try:
                for batch in self._batches(file, columns, group):
                    yield from self._rows(batch, columns, row)
                    row += batch.num_rows
            except _ERRORS as error:
                yield self._lost("shard_damaged", error, rows=(row, end - 1))

    def _batches(self, file: pq.ParquetFile, columns: ParquetColumns, group: int) -> Iterator[pa.RecordBatch]:
        rows = IMAGE_BATCH_ROWS if columns.image is not None else PATH_BATCH_ROWS
        batches: Iterator[pa.RecordBatch] = file.iter_batches(
            batch_size=rows, row_groups=[group], columns=columns.names(), use_threads=False
        )
        return batches

    def _rows(self, batch: pa.RecordBatch, columns: ParquetColumns, row: int) -> Iterator[Sample | Failure]:
        values = _values(batch, columns.image or columns.path)
        ids = _values(batch, columns.id) if columns.id is not None else [None] * batch.num_rows
        for number, (value, key) in enumerate(zip(values, ids, strict=True), row):
            try:
                yield self._entry(value, id_from_value(key), number, is_path=columns.image is None)
            except ValueError as error:
                message = f"{shown(self._path)}, row {number}: {error}"
                yield Failure(self._row_id(number), "source", "malformed_row", message)

    def _entry(self, value: Any, key: str | None, row: int, *, is_path: bool) -> Sample | Failure:
        if is_path:
            return self._located(path_from_value(value), key)
        sample_id = key if key is not None else self._row_id(row)
        if isinstance(value, dict):
            if value["bytes"] is None and value.get("path"):
                return self._located(path_from_value(value["path"]), sample_id)
            value = value["bytes"]
        if value is None:
            return Failure(sample_id, "source", "null_image", f"{shown(self._path)}, row {row}: its image is null")
        return Sample(sample_id, partial(bytes, value))

    def _located(self, path: bytes, key: str | None) -> Sample:
        read = reader_of(path, self._root, self._url_options)
        return Sample(key if key is not None else id_from_bytes(path), read)

    def _row_id(self, row: int) -> str:
        return member_id(self._name, b"%d" % row)

    def _lost(self, kind: str, error: Exception, rows: tuple[int, int] | None = None) -> Failure:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        # a file that is damaged may be replaced by a whole one, as a tar is; one of another format stays what it is
        retryable = is_retryable(error) if isinstance(error, OSError) else rows is not None
        if rows is None:
            return Failure(id_from_bytes(self._name), "source", kind, f"{shown(self._path)}: {reason}", retryable)
        first, last = rows
        sample_id = member_id(self._name, b"rows %d-%d" % rows)
        message = f"{shown(self._path)}, rows {first} to {last}: {reason}"
        return Failure(sample_id, "source", kind, message, retryable)


def choose_columns(schema: pa.Schema, asked: ParquetColumns, *, file: str) -> ParquetColumns:
    """Columns to read of a schema; raises UsageError, which names the columns seen."""
    key = pick_column(schema.names, asked.id, ID_COLUMNS, option="--id-column", file=file)
    if asked.path is not None:
        return ParquetColumns(None, pick_column(schema.names, asked.path, (), option="--path-column", file=file), key)
    candidates = [field.name for field in schema if _holds_images(field.type) and field.name != asked.id]
    if asked.image is not None:
        pick_column(schema.names, asked.image, (), option="--image-column", file=file)
        if asked.image not in candidates:
            kind = schema.field(asked.image).type
            raise UsageError(f"{file}: column '{asked.image}' holds {kind}, not bytes. {_types_seen(schema)}")
        return ParquetColumns(asked.image, None, key)
    image = next((name for name in IMAGE_COLUMNS if name in candidates), None)
    if image is None and len(candidates) == 1:
        image = candidates[0]
    if image is not None:
        return ParquetColumns(image, None, key if key != image else None)
    path = next((name for name in PATH_COLUMNS if name in schema.names and not candidates), None)
    if path is None:
        raise UsageError(
            f"{file}: which column holds the images? {_types_seen(schema)} "
            "Name it with --image-column or --path-column."
        )
    return ParquetColumns(None, path, key)


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _is_bytes(kind.field(place).type)
    return _is_bytes(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _types_seen(schema: pa.Schema) -> str:
    return columns_seen(f"{field.name} ({field.type})" for field in schema)


def _values(batch: pa.RecordBatch, name: str | None) -> list[Any]:
    """Values of a column; text comes as bytes, since it may not be UTF-8 in files that lie about it."""
    column = batch.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    values: list[Any] = column.to_pylist()
    return values
