"""What a model file says of itself: task, preprocessing, outputs, class names.

Stored as JSON under the key ``vdali`` of the ONNX metadata, so that a file is all that a run needs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .errors import ModelError
from .preprocess import Preprocess

METADATA_KEY = "vdali"
SPEC_VERSION = 1
INPUT_NAME = "images"


class Task(StrEnum):
    """What a model gives for a picture."""

    CLASSIFY = "classify"
    EMBED = "embed"
    SEGMENT = "segment"


class Precision(StrEnum):
    """Numeric type of the graph."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT8_FP16 = "int8+fp16"


OUTPUT_NAMES: dict[Task, tuple[str, ...]] = {
    Task.CLASSIFY: ("top_scores", "top_labels"),
    Task.EMBED: ("embedding",),
    Task.SEGMENT: ("mask",),
}
"""Graph outputs of each task: float32 [n, k] and int64 [n, k] / float32 [n, d] / uint8 [n, h, w]."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Contract between a model file and a run.

    The graph takes ``images``: uint8 [n, height, width, 3] RGB, and gives OUTPUT_NAMES[task].
    ``classes`` are the names of class 0, 1, ... where known. ``raw_output`` is the tensor inside the
    graph that validation compares (logits, or the embedding before normalisation). ``normalize``
    says whether embeddings are L2-normalised in the graph. ``weights`` says where the weights come
    from, ``random (seed 0)`` included.
    """

    name: str
    task: Task
    preprocess: Preprocess
    precision: Precision = Precision.FP32
    classes: tuple[str, ...] | None = None
    raw_output: str = ""
    normalize: bool = False
    weights: str = ""
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "spec_version": SPEC_VERSION,
            "name": self.name,
            "task": self.task.value,
            "preprocess": self.preprocess.to_json(),
            "precision": self.precision.value,
            "classes": list(self.classes) if self.classes is not None else None,
            "raw_output": self.raw_output,
            "normalize": self.normalize,
            "weights": self.weights,
            "source": self.source,
        }

    def dumps(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    @classmethod
    def loads(cls, text: str, *, file: str) -> ModelSpec:
        """Spec from ONNX metadata; raises ModelError when it is of another version or not readable."""
        try:
            values = json.loads(text)
            version = values["spec_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"The metadata of {file} is not readable ({error!r}). Export the model again.") from error
        if version != SPEC_VERSION:
            raise ModelError(
                f"{file} was exported with spec version {version}; this vdali reads version {SPEC_VERSION}. "
                "Export the model again."
            )
        try:
            return cls(
                name=values["name"],
                task=Task(values["task"]),
                preprocess=Preprocess.from_json(values["preprocess"]),
                precision=Precision(values["precision"]),
                classes=tuple(values["classes"]) if values["classes"] is not None else None,
                raw_output=values["raw_output"],
                normalize=bool(values["normalize"]),
                weights=values["weights"],
                source=values["source"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"The metadata of {file} is incomplete ({error!r}). Export the model again.") from error
