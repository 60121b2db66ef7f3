"""Calibrations kept by all that they depend on, so that none is measured twice and none is used for another model."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from ...engine.errors import VdaliError
from ...engine.plans.files import write_atomically
from ...engine.spec import ModelSpec
from ...engine.version import __version__
from ...kernels.cache import cache_folder
from ..calibration import CalibrationSet
from .layers import Places
from .nodes import Calibration, with_qdq
from .ranges import measure_int8_ranges
from .shifts import measure_shifts

CALIBRATION_VERSION = 1
"""Counts the changes of how ranges are chosen: raised, it makes every cached calibration stale."""

_TOOLS = ("onnx", "onnxruntime-gpu", "numpy")
_KEY_LETTERS = 12

Report = Callable[[str], None]


def cached_calibration(
    model: ModelProto, spec: ModelSpec, places: Places, pictures: CalibrationSet, report: Report
) -> Calibration:
    """Calibration of a prepared model, from the cache when it is of just this, else measured and kept there.

    A cache that cannot be written is told of and does no harm. Raises ModelError when the model gives values that are
    not finite.
    """
    key = calibration_key(model, spec, pictures)
    name = re.sub(r"[^A-Za-z0-9_.+-]+", "_", spec.name[:60])
    path = cache_folder() / "calibration" / f"{name}-{key[:_KEY_LETTERS]}.json"
    found = _read(path, key)
    if found is not None:
        report(f"int8 ranges of {spec.name} from the cache.")
        return found
    report(f"int8 ranges of {spec.name} are measured on {pictures.description}.")
    calibration = _measured(model, places, pictures)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _dumps(calibration, key))
    except (OSError, VdaliError) as error:
        report(f"The int8 ranges are not kept: {error}")
    return calibration


def calibration_key(model: ModelProto, spec: ModelSpec, pictures: CalibrationSet) -> str:
    """SHA-256 (hex) of a model's nodes and weights, its preprocessing, the pictures and the versions of all tools."""
    facts = {
        "model": _content(model),
        "preprocess": spec.preprocess.fingerprint(),
        "pictures": pictures.content,
        "versions": [__version__, CALIBRATION_VERSION, *(version(tool) for tool in _TOOLS)],
    }
    return _digest(facts)


def _measured(model: ModelProto, places: Places, pictures: CalibrationSet) -> Calibration:
    ranges = measure_int8_ranges(model, places.sources, pictures)
    int8 = with_qdq(model, places, Calibration(ranges, {}))
    return Calibration(ranges, measure_shifts(model, int8, places, pictures))


def _content(model: ModelProto) -> str:
    """Digest of the graph; tensor by tensor, since protobuf cannot hold 2 GiB."""
    digest = hashlib.sha256()
    for part in (*model.opset_import, *model.graph.input, *model.graph.output, *model.graph.node):
        digest.update(part.SerializeToString(deterministic=True))
    for tensor in model.graph.initializer:
        digest.update(tensor.SerializeToString(deterministic=True))
    return digest.hexdigest()


def _dumps(calibration: Calibration, key: str) -> bytes:
    values = {
        "key": key,
        "ranges": dict(calibration.ranges),
        "shifts": {name: _text(shift) for name, shift in calibration.shifts.items()},
    }
    return json.dumps({**values, "digest": _digest(values)}, indent=1).encode()


def _read(path: Path, key: str) -> Calibration | None:
    """Calibration in a file; None when there is none, or it is damaged or of something else."""
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
        if values.pop("digest") != _digest(values) or values["key"] != key:
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Calibration(values["ranges"], {name: _array(text) for name, text in values["shifts"].items()})


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _text(values: NDArray[np.float32]) -> str:
    """Little-endian float32 as base64: decimals of a million shifts would take ten times the room."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _array(text: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)
