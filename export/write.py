"""Model files on disk: whole or absent, weights beside them where protobuf cannot hold them."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import ModelProto

from ..engine.backends.content import external_locations, tensors_of
from ..engine.errors import ModelError, VdaliError
from .graph import bytes_of

_EXTERNAL_FROM_BYTES = 1024
"""Smaller tensors stay in the ONNX file, where shape inference sees them."""


def write_model(model: ModelProto, path: Path, *, check: Callable[[Path], None], data_over: int) -> None:
    """Write ``model`` to ``path`` once ``check`` accepts the written file; afterwards it is there whole, or as before.

    Weights of more than ``data_over`` bytes together go to ``NAME.<digest>.data`` in the same folder. Raises
    VdaliError when the folder cannot be written, and what ``check`` raises.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            draft = Path(folder) / path.name
            _save(model, draft, data_over)
            check(draft)
            _publish(draft, path)
    except OSError as error:
        raise VdaliError(
            f"Cannot write {path}: {error.strerror or error}. Name another folder (the cache is VDALI_CACHE), or "
            "free some space."
        ) from error


def drop_drafts(path: Path) -> None:
    """Delete what a killed process left of ``path`` half-written; only for who holds its lock."""
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):
        shutil.rmtree(draft, ignore_errors=True)


def _save(model: ModelProto, draft: Path, data_over: int) -> None:
    if sum(bytes_of(tensor) for tensor in tensors_of(model.graph)) <= data_over:
        onnx.save(model, draft)
        return
    digest = hashlib.sha256()
    for tensor in tensors_of(model.graph):
        digest.update(tensor.raw_data)
    onnx.save(
        model,
        draft,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=f"{draft.name}.{digest.hexdigest()[:12]}.data",
        size_threshold=_EXTERNAL_FROM_BYTES,
    )


def _publish(draft: Path, path: Path) -> None:
    """Data files first: the rename of the ONNX file is what makes the new model real."""
    replaced = _data_files(path)
    fresh = [draft.parent / location for location in external_locations(draft)]
    for file in (*fresh, draft):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
    for file in fresh:
        file.chmod(draft.stat().st_mode)  # onnx makes them readable by their owner alone
        os.replace(file, path.parent / file.name)
    os.replace(draft, path)
    _sync_folder(path.parent)
    for file in replaced - {path.parent / file.name for file in fresh}:
        file.unlink(missing_ok=True)


def _data_files(path: Path) -> set[Path]:
    """Data files that this module wrote for an earlier model at ``path``."""
    if not path.exists():
        return set()
    try:
        locations = external_locations(path)
    except ModelError:  # whatever is there is replaced, and is none of ours
        return set()
    return {path.parent / name for name in locations if name.startswith(f"{path.name}.") and name.endswith(".data")}


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
