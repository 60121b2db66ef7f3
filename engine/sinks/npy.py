"""Rows as NumPy part files, for ``np.load`` with memory mapping; failures stay Parquet.

Part 0 of embeddings is ``rows/part-00000.embedding.npy``, float32 [n, d]. Beside it, written last,
``rows/part-00000.ids.parquet`` holds ``id`` and whatever is no number; its presence commits the part.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import UsageError
from ..spec import ModelSpec, Task
from .parquet import ParquetSink, PartOptions
from .parts import delete_durably, part_name, parts_of, reading, row_count, write_durably

_ARRAYS = {Task.CLASSIFY: ("label", "score", "top_labels", "top_scores"), Task.EMBED: ("embedding",)}


def check_npy(spec: ModelSpec) -> None:
    """Raise UsageError for a task whose rows are no arrays."""
    if spec.task not in _ARRAYS:
        raise UsageError(f"Format npy holds arrays, but task {spec.task} gives PNG files. Use --format parquet.")


class NpySink(ParquetSink):
    """Sink that writes one .npy file per numeric column and part."""

    rows_suffix: ClassVar[str] = "ids.parquet"

    def __init__(
        self,
        out: Path,
        *,
        spec: ModelSpec,
        fingerprint: str,
        options: PartOptions | None = None,
        retry_failures: bool = False,
    ) -> None:
        check_npy(spec)
        super().__init__(out, spec=spec, fingerprint=fingerprint, options=options, retry_failures=retry_failures)

    def _write_rows(self, number: int, table: pa.Table) -> None:
        names = _ARRAYS[self._spec.task]
        for name in names:
            array = _numpy(table.column(name))
            path = self._rows_folder / part_name(number, f"{name}.npy")
            write_durably(path, partial(_save, array))
        super()._write_rows(number, table.drop_columns(list(names)))

    def _recover_rows(self) -> None:
        """Delete arrays that were not committed; raises OutputError where committed ones are not as they should be."""
        super()._recover_rows()
        committed = parts_of(self._rows_folder, self.rows_suffix)
        for name in _ARRAYS[self._spec.task]:
            arrays = parts_of(self._rows_folder, f"{name}.npy")
            for number in arrays.keys() - committed.keys():
                delete_durably(arrays[number])
            for number, marker in committed.items():
                _check_array(self._rows_folder / part_name(number, f"{name}.npy"), marker)


def _save(array: NDArray[np.generic], file: BinaryIO) -> None:
    """Write the bytes of a .npy file; ``np.save`` would lose the reason when the disk is full."""
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(np.ascontiguousarray(array).data)


def _check_array(path: Path, marker: Path) -> None:
    count = row_count(marker)
    with reading(path):
        found = len(np.load(path, mmap_mode="r", allow_pickle=False))
        if found != count:
            raise ValueError(f"it has {found} rows where {marker.name} has {count}")


def _numpy(column: pa.ChunkedArray) -> NDArray[np.generic]:
    """Array [n] or [n, k] of a column of numbers or of vectors."""
    array = column.combine_chunks()
    if not pa.types.is_nested(array.type):
        return np.asarray(array)
    width = array.type.list_size if pa.types.is_fixed_size_list(array.type) else 0
    return np.asarray(array.flatten()).reshape(len(array), width)
