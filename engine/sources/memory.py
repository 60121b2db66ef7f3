"""Samples that a program already holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

from ..batch import Failure, Sample
from ..errors import UsageError
from .ids import id_from_bytes


class MemorySource:
    """Samples, or (id, encoded bytes) pairs, from any iterable; pairs are taken one by one, never all at once.

    An iterator can be consumed once: a second pass over it raises UsageError.
    """

    def __init__(self, samples: Iterable[Sample | tuple[str, bytes]]) -> None:
        self.ignored: Counter[str] = Counter()
        self._samples = samples
        self._consumed = False

    def describe(self) -> str:
        return f"samples in memory ({type(self._samples).__name__})"

    def __iter__(self) -> Iterator[Sample | Failure]:
        if self._consumed:
            raise UsageError(
                f"The samples come from a {type(self._samples).__name__}, which is used up after one pass. "
                "Give a list, or an object whose __iter__ starts anew."
            )
        samples = iter(self._samples)
        self._consumed = samples is self._samples
        return map(_sample_from, samples)


def _sample_from(value: Sample | tuple[str, bytes]) -> Sample:
    try:
        if isinstance(value, Sample):
            return Sample(_valid_id(value.id), value.read)
        sample_id, data = value
        memoryview(data)  # bytes(3) would be three zeros
        return Sample(_valid_id(sample_id), partial(bytes, data))
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"Samples in memory are Sample objects or (id, bytes) pairs with a str id, got {value!r:.200}."
        ) from error


def _valid_id(name: str) -> str:
    """Same id, escaped where it holds the surrogates that Python puts for bytes that are not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return id_from_bytes(name.encode("utf-8", "surrogateescape"))
    return name
