"""What earlier sessions have committed, at 16 bytes an entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..batch import DUPLICATE_ID
from .parts import reading, row_count

DIGEST_BYTES = 16
"""128 bits: among 10 million ids the chance of any two alike is 1e-25."""

_CHUNK = 1 << 14


class EntryKeys:
    """Names entries by digest while they come in order.

    A failure of kind DUPLICATE_ID has the id of another entry: the n-th of an id is named by id and n.
    """

    def __init__(self) -> None:
        self._duplicates: Counter[bytes] = Counter()

    def key_of(self, entry_id: str, kind: str | None = None) -> bytes:
        """Digest of one entry; ``kind`` is its failure's kind, None for a sample or row."""
        key = _digest(entry_id)
        if kind != DUPLICATE_ID:
            return key
        self._duplicates[key] += 1
        return _digest(entry_id, self._duplicates[key])


class DoneIndex:
    """Sorted digests of committed entries; looking one up takes about 3 microseconds."""

    def __init__(self, keys: Iterable[bytes], count: int) -> None:
        """Index of exactly ``count`` keys; the peak is ``count`` times 16 bytes and one chunk."""
        self._digests: NDArray[np.bytes_] = np.empty(count, dtype=f"S{DIGEST_BYTES}")
        filled = 0
        for chunk in _chunks(keys):
            self._digests[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        if filled != count:
            raise ValueError(f"{count} keys were announced, {filled} came")
        self._digests.sort()

    @classmethod
    def from_parts(cls, rows: Iterable[Path], failures: Iterable[Path]) -> DoneIndex:
        """Index of all ids in part files, read a few thousand at a time.

        Raises OutputError when a part is not readable.
        """
        rows, failures = list(rows), list(failures)
        return cls(_keys(rows, failures), sum(row_count(path) for path in (*rows, *failures)))

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, key: bytes) -> bool:
        position = int(self._digests.searchsorted(np.bytes_(key)))
        return position < len(self._digests) and self._digests[position] == key.rstrip(b"\0")


def _digest(entry_id: str, number: int = 0) -> bytes:
    data = entry_id.encode()
    if not number:
        return blake2b(data, digest_size=DIGEST_BYTES).digest()
    return blake2b(data, digest_size=DIGEST_BYTES, salt=number.to_bytes(8, "little")).digest()


def _keys(rows: Iterable[Path], failures: Iterable[Path]) -> Iterator[bytes]:
    for path in rows:
        for (ids,) in _columns(path, ["id"]):
            yield from map(_digest, ids)
    keys = EntryKeys()
    for path in failures:
        for ids, kinds in _columns(path, ["id", "kind"]):
            yield from map(keys.key_of, ids, kinds)


def _columns(path: Path, names: list[str]) -> Iterator[list[list[str]]]:
    with reading(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for batch in file.iter_batches(batch_size=_CHUNK, columns=names):
            yield [batch.column(name).to_pylist() for name in names]


def _chunks(keys: Iterable[bytes]) -> Iterator[NDArray[np.bytes_]]:
    iterator = iter(keys)
    while chunk := b"".join(islice(iterator, _CHUNK)):
        yield np.frombuffer(chunk, dtype=f"S{DIGEST_BYTES}")
