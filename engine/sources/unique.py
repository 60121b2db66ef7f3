"""No id twice: the second entry of an id is a failure, never a second row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b

from ..batch import DUPLICATE_ID, Failure, Sample
from .interface import Source

DIGEST_BYTES = 16
"""Of BLAKE2b per id. Two of 10**9 different ids share 128 bits with probability 1.5e-21 (n**2 / 2**129)."""


class UniqueSource:
    """Entries of a source, each id once; costs about 100 bytes of memory and 1 microsecond per entry.

    Only sources whose ids could repeat need it. A repeated id is recorded with kind ``duplicate_id``.
    ``seen`` lets several sources share their memory of ids; without it each pass starts with none.
    """

    def __init__(self, source: Source, *, seen: set[int] | None = None) -> None:
        self._source = source
        self._seen = seen

    @property
    def ignored(self) -> Counter[str]:
        return self._source.ignored

    def describe(self) -> str:
        return self._source.describe()

    def __iter__(self) -> Iterator[Sample | Failure]:
        seen = self._seen if self._seen is not None else set()
        for entry in self._source:
            digest = int.from_bytes(blake2b(entry.id.encode(), digest_size=DIGEST_BYTES).digest())
            if digest in seen:
                is_told = isinstance(entry, Failure) and entry.kind == DUPLICATE_ID
                yield entry if is_told else _duplicate(entry)
            else:
                seen.add(digest)
                yield entry


def _duplicate(entry: Sample | Failure) -> Failure:
    what = f" It failed too ({entry.kind}: {entry.message})" if isinstance(entry, Failure) else ""
    message = f"An entry before this one has the same id {entry.id!r}; this one is not inferred.{what}"
    return Failure(entry.id, "source", DUPLICATE_ID, message)
