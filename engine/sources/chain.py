"""Several sources, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..batch import Failure, Sample
from .interface import Source


class ChainSource:
    """Sources in the order given; ``ignored`` is the sum over those begun so far."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._finished: Counter[str] = Counter()
        self._current: Source | None = None

    @property
    def ignored(self) -> Counter[str]:
        total = Counter(self._finished)
        if self._current is not None:
            total.update(dict(self._current.ignored))
        return total

    def describe(self) -> str:
        names = [source.describe() for source in self._sources[:3]]
        more = len(self._sources) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")

    def __iter__(self) -> Iterator[Sample | Failure]:
        self._finished = Counter()
        self._current = None
        for source in self._sources:
            entries = iter(source)
            self._current = source
            yield from entries
            self._finished.update(source.ignored)
            self._current = None
