"""Where an entry of a list points to: a local file or a URL, read only when its sample is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from .files import read_file

_URL = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class UrlOptions:
    """Bounds of one download: ``deadline_s`` is for all of it, retries and redirects included.

    ``max_redirects`` and ``retries`` count per download; only what may pass by itself is retried.
    """

    deadline_s: float = 30.0
    max_bytes: int = 256 << 20
    max_redirects: int = 5
    retries: int = 2


DEFAULT_URL_OPTIONS = UrlOptions()


def is_url(location: bytes) -> bool:
    return b"://" in location and _URL.match(location) is not None


def reader_of(location: bytes, root: bytes, options: UrlOptions) -> Callable[[], bytes]:
    """What reads a path (relative ones from ``root``) or a URL; raises ValueError for what can be neither."""
    if b"\0" in location:
        raise ValueError("holds a NUL byte")
    if is_url(location):
        return partial(_read_url, location, options)
    return partial(read_file, os.path.join(root, location))


def _read_url(location: bytes, options: UrlOptions) -> bytes:
    from .url import read_url  # TLS and sockets are loaded by the first URL, not by every start

    return read_url(os.fsdecode(location), options)
