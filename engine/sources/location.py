"""Where an entry of a list points to: a local file or a URL, read only when its sample is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial

from .files import read_file
from .url_options import UrlOptions

_URL = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://")


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
