"""Splitting of any source among workers, without overlap and without gap."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

from ..batch import Failure, Sample
from ..errors import UsageError
from .interface import Source


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` (from 0) of ``count``: the entries whose id's hash falls to it.

    Which part an id belongs to depends on the id alone, so workers agree whatever they list first.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"Shard {self.index}/{self.count} does not exist: shards are counted from 0, "
                f"the last of {self.count} is {self.count - 1}/{self.count}."
                if self.count > 0
                else f"Shard {self.index}/{self.count}: the number of shards must be 1 or more, as in 0/4."
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Shard from ``i/n``, such as ``0/4``; raises UsageError."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip(), re.ASCII)
        if match is None:
            raise UsageError(f"Shard '{text}' is not of the form i/n with whole numbers. Use 0/4 for the first of 4.")
        return cls(int(match[1]), int(match[2]))

    def holds(self, sample_id: str) -> bool:
        digest = blake2b(sample_id.encode(), digest_size=8).digest()
        return int.from_bytes(digest) % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class ShardSource:
    """Entries of a source that one shard holds; ``ignored`` counts those of the whole source."""

    def __init__(self, source: Source, shard: Shard) -> None:
        self._source = source
        self._shard = shard

    @property
    def ignored(self) -> Counter[str]:
        return self._source.ignored

    def describe(self) -> str:
        return f"{self._source.describe()}, shard {self._shard}"

    def __iter__(self) -> Iterator[Sample | Failure]:
        holds = self._shard.holds
        return (entry for entry in self._source if holds(entry.id))
