"""Arrow schemas of rows and failures, and how values become record batches of them.

Every part file says in its schema metadata which run it belongs to and how it came about: run
fingerprint, model, precision, normalisation, preprocessing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..batch import Column, Failure, Rows
from ..spec import ModelSpec, Task

SCHEMA_VERSION = 1
"""Counts up when columns change; parts of different versions never stand in one folder."""

_VECTORS = {Task.CLASSIFY: "top_labels", Task.EMBED: "embedding"}


def width_of(spec: ModelSpec, rows: Rows) -> int:
    """Length of the vectors in ``rows``: k best classes or d dimensions; 0 for a task without vectors."""
    name = _VECTORS.get(spec.task)
    return int(np.shape(rows.columns[name])[1]) if name else 0


def rows_schema(spec: ModelSpec, fingerprint: str, width: int | None) -> pa.Schema:
    """Schema of the rows of a run, for vectors of ``width`` values.

    With ``width`` None (no row is known) vectors are lists of any length.
    """
    fields: list[pa.Field] = [_field("id", pa.string())]
    if spec.task is Task.CLASSIFY:
        fields += [_field("label", pa.int32())]
        fields += [pa.field("name", pa.string())] if spec.classes is not None else []
        fields += [_field("score", pa.float32())]
        fields += [_field("top_labels", _vector(pa.int32(), width)), _field("top_scores", _vector(pa.float32(), width))]
    elif spec.task is Task.EMBED:
        fields += [_field("embedding", _vector(pa.float32(), width))]
    else:
        fields += [_field("mask_png", pa.binary()), _field("height", pa.int32()), _field("width", pa.int32())]
    fields += [_field("salvaged", pa.bool_())]
    return pa.schema(fields, metadata=_metadata(spec, fingerprint) | {"vdali.width": str(width or 0)})


def failures_schema(spec: ModelSpec, fingerprint: str) -> pa.Schema:
    texts = [_field(name, pa.string()) for name in ("id", "stage", "kind", "message")]
    return pa.schema([*texts, _field("retryable", pa.bool_())], metadata=_metadata(spec, fingerprint))


def batch_from_rows(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """Record batch that shares memory with the arrays of ``rows``; no loop over rows in Python."""
    values: list[Any] = [pa.array(rows.ids, type=pa.string())]
    values += [_array(rows.columns[field.name], field, len(rows)) for field in list(schema)[1:]]
    return pa.RecordBatch.from_arrays(values, schema=schema)


def batch_from_failures(failures: Sequence[Failure], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([failure.id for failure in failures], type=pa.string()),
            pa.array([failure.stage for failure in failures], type=pa.string()),
            pa.array([failure.kind for failure in failures], type=pa.string()),
            pa.array([_valid(failure.message) for failure in failures], type=pa.string()),
            pa.array([failure.retryable for failure in failures], type=pa.bool_()),
        ],
        schema=schema,
    )


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Options for pyarrow's Parquet writer.

    Vectors and PNG files do not shrink, so they are neither compressed nor tried as a dictionary: for
    4,096 vectors of 512 the writer then takes 31 ms instead of 74 ms with its defaults, and the file is
    smaller. Pages have checksums, so that a rotten disk shows.
    """
    raw = ("embedding", "mask_png")
    light = [field.name for field in schema if field.name not in raw and not _is_vector(field)]
    return {
        "compression": dict.fromkeys(light, "zstd"),
        "compression_level": dict.fromkeys(light, 1),
        "use_dictionary": [name for name in ("name", "stage", "kind", "message") if name in light],
        "write_statistics": light,
        "write_page_checksum": True,
    }


def _metadata(spec: ModelSpec, fingerprint: str) -> dict[str, str]:
    return {
        "vdali.schema_version": str(SCHEMA_VERSION),
        "vdali.fingerprint": fingerprint,
        "vdali.model": spec.name,
        "vdali.task": spec.task.value,
        "vdali.precision": spec.precision.value,
        "vdali.normalize": "true" if spec.normalize else "false",
        "vdali.preprocess": spec.preprocess.fingerprint(),
    }


def _field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _vector(element: pa.DataType, width: int | None) -> pa.DataType:
    return pa.list_(pa.field("element", element, nullable=False), -1 if width is None else width)


def _is_vector(field: pa.Field) -> bool:
    return bool(pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type))


def _array(column: Column, field: pa.Field, count: int) -> pa.Array:
    if not _is_vector(field):
        return pa.array(column, type=field.type)
    if np.shape(column) != (count, field.type.list_size):
        raise ValueError(f"column {field.name} has shape {np.shape(column)}, expected {(count, field.type.list_size)}")
    flat = pa.array(np.ascontiguousarray(column).reshape(-1), type=field.type.value_type)
    return pa.FixedSizeListArray.from_arrays(flat, type=field.type)


def _valid(text: str) -> str:
    """Text with lone surrogates (bytes of a file name that are not UTF-8) written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
