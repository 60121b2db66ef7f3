"""Images of any INPUT as files of a folder, so that every system can be given them by path."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..engine.batch import Failure
from ..engine.errors import InputNotFoundError, ReadError
from ..engine.preprocess import Preprocess
from ..engine.sources.open import open_source
from .data import make_jpegs, usable_files

Input = str | os.PathLike[str]
_MADE = 64
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")
_NAME_CHARACTERS = 80


def staged_images(
    inputs: Sequence[Input], folder: Path, spec: Preprocess, *, limit: int
) -> tuple[list[Path], dict[str, str]]:
    """Files in ``folder`` for the first ``limit`` usable entries of ``inputs``, and why each other one was left out.

    Without ``inputs`` they are JPEGs of about 500x375 made from the demo photos. Raises InputNotFoundError where no
    image can be used, MissingExtraError without ``inputs`` where the demo photos are not installed.
    """
    if not inputs:
        return make_jpegs(folder, count=min(limit, _MADE)), {}
    folder.mkdir(parents=True, exist_ok=True)
    ids: dict[Path, str] = {}
    left_out: dict[str, str] = {}
    for entry in open_source(inputs, limit=limit):
        if isinstance(entry, Failure):
            left_out[entry.id] = entry.message
            continue
        path = folder / f"{len(ids):06d}-{_UNUSUAL.sub('_', entry.id)[-_NAME_CHARACTERS:]}"  # so that people know it
        try:
            path.write_bytes(entry.read())
        except ReadError as error:
            left_out[entry.id] = str(error)
            continue
        ids[path] = entry.id
    usable, refused = usable_files(list(ids), spec)
    left_out |= {ids[path]: reason for path, reason in refused.items()}
    if not usable:
        first = next(iter(left_out.items()), None)
        why = f"; the first, {first[0]}: {first[1]}" if first is not None else ""
        raise InputNotFoundError(f"No usable image in {', '.join(map(str, inputs))}{why}. Check the INPUT.")
    return usable, left_out
