"""What a file says of its precision: the spec's word, and the layers that were kept in a higher one, with reasons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from onnx import ModelProto, helper

from ..engine.spec import METADATA_KEY, ModelSpec, Precision

KEPT_KEY = "vdali.kept"
"""Key in the ONNX metadata: JSON object, node name to the reason why it computes in a higher precision."""


def stamp(model: ModelProto, spec: ModelSpec, precision: Precision, kept: Mapping[str, str]) -> None:
    """Write precision and kept layers into the metadata of ``model``."""
    stated = replace(spec, precision=precision).dumps()
    helper.set_model_props(model, {METADATA_KEY: stated, KEPT_KEY: json.dumps(dict(kept), sort_keys=True)})


def spec_of(model: ModelProto, *, file: str) -> ModelSpec:
    """Spec of a vdali model; raises ModelError when there is none or it cannot be read."""
    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA_KEY), "")
    return ModelSpec.loads(text, file=file)


def kept_of(model: ModelProto) -> dict[str, str]:
    """Kept layers of a vdali model and why; empty where it names none."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEPT_KEY), "{}")
    return {str(node): str(reason) for node, reason in json.loads(text).items()}
