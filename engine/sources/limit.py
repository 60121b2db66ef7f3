"""The first entries of a source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from ..batch import Failure, Sample
from ..errors import UsageError
from .interface import Source


class LimitSource:
    """First ``limit`` entries, samples and failures alike; what comes after is never listed."""

    def __init__(self, source: Source, limit: int) -> None:
        if limit < 1:
            raise UsageError(f"A limit of {limit} entries leaves nothing to do. Use 1 or more.")
        self._source = source
        self._limit = limit

    @property
    def ignored(self) -> Counter[str]:
        return self._source.ignored

    def describe(self) -> str:
        return f"{self._source.describe()}, first {self._limit}"

    def __iter__(self) -> Iterator[Sample | Failure]:
        return islice(iter(self._source), self._limit)
