"""What a source is: an ordered, lazy stream of samples with ids that lead back to the bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from ..batch import Failure, Sample


class Source(Protocol):
    """Samples in a fixed order, listed while they are consumed.

    Iterating yields a Sample for each image and a Failure for each entry that is known to be lost
    already (a dead link, a truncated shard). ``ignored`` counts, by reason, the entries passed over
    so far. Iterating again starts from the beginning, and counts anew.
    """

    @property
    def ignored(self) -> Counter[str]: ...

    def __iter__(self) -> Iterator[Sample | Failure]: ...

    def describe(self) -> str:
        """One line for people: what is read from where."""
        ...
