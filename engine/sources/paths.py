"""Images that are named one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..batch import Failure, Sample
from .ids import id_from_bytes, shown
from .location import reader_of
from .url_options import DEFAULT_URL_OPTIONS, UrlOptions


class PathsSource:
    """Files or URLs in the order given; each is a sample, whatever it holds, with the path as typed as its id."""

    def __init__(self, paths: Sequence[bytes], root: bytes, *, url_options: UrlOptions = DEFAULT_URL_OPTIONS) -> None:
        self.ignored: Counter[str] = Counter()
        self._paths = paths
        self._root = root
        self._url_options = url_options

    def describe(self) -> str:
        count = len(self._paths)
        return f"image {shown(self._paths[0])}" if count == 1 else f"{count} images from {shown(self._paths[0])} on"

    def __iter__(self) -> Iterator[Sample | Failure]:
        for path in self._paths:
            yield Sample(id_from_bytes(path), reader_of(path, self._root, self._url_options))
