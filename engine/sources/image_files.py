"""Single files of a folder or a pattern: which are samples, and what became of dead links."""

from __future__ import annotations

import errno
import os
from collections import Counter
from functools import partial

from ..batch import Failure, Sample
from .files import read_file, read_first_bytes
from .ids import id_from_bytes, shown
from .sniff import SNIFF_BYTES, count_not_image, has_image_extension, looks_like_image

_DEAD = frozenset([errno.ENOENT, errno.ENOTDIR, errno.ELOOP])


def sample_of_file(path: bytes, raw_id: bytes, ignored: Counter[str]) -> Sample | None:
    """Sample of a regular file that is an image by name or content, else None and a count; raises OSError."""
    if has_image_extension(raw_id) or _is_image(path, ignored):
        return Sample(id_from_bytes(raw_id), partial(read_file, path))
    return None


def mode_of_link(path: bytes, raw_id: bytes) -> int | Failure:
    """File mode behind a link, or the failure that a dead link is; raises OSError for all other trouble."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno not in _DEAD:
            raise
        why = "a loop of links" if error.errno == errno.ELOOP else "which does not exist"
    message = f"{shown(path)}: link to {shown(os.readlink(path))}, {why}"
    return Failure(id_from_bytes(raw_id), "source", "dead_link", message)


def _is_image(path: bytes, ignored: Counter[str]) -> bool:
    try:
        found = looks_like_image(read_first_bytes(path, SNIFF_BYTES))
    except FileNotFoundError:
        ignored["gone while it was listed"] += 1
        return False
    if not found:
        count_not_image(ignored, path)
    return found
