"""What every kind of source is turned into before folding: a network as ONNX, and how to tell whether it is right."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from ..engine.preprocess import ColorOrder, Preprocess
from ..engine.spec import Task


class Layout(StrEnum):
    """Order of dimensions that the network takes."""

    NCHW = "nchw"
    NHWC = "nhwc"


class Gives(StrEnum):
    """What ``Core.expected`` holds: the raw tensor, its softmax, or class ids per pixel."""

    RAW = "raw"
    PROBABILITIES = "probabilities"
    LABELS = "labels"


@dataclass(frozen=True, slots=True)
class Core:
    """A network without pre- and post-processing.

    ``model`` takes ``input_name``, float32 in ``layout``, already normalised, batch dynamic, and gives one output
    ``raw_name`` of shape [n, *raw_shape]: logits, an embedding, per-pixel logits with classes along ``class_axis``, or
    (``raw_is_mask``) integer class ids per pixel. ``label_offset`` leading columns are no classes. ``expected`` is what
    the source itself gives for each trial picture.
    """

    model: ModelProto
    name: str
    task: Task
    preprocess: Preprocess
    input_name: str
    raw_name: str
    raw_shape: tuple[int, ...]
    expected: NDArray[Any]
    gives: Gives = Gives.RAW
    layout: Layout = Layout.NCHW
    class_axis: int = 1
    raw_is_mask: bool = False
    classes: tuple[str, ...] | None = None
    label_offset: int = 0
    normalize: bool = False
    weights: str = ""
    source: str = ""


def normalised(pixels: NDArray[np.uint8], spec: Preprocess, layout: Layout) -> NDArray[np.float32]:
    """Network input for uint8 [n, height, width, 3] RGB, step by step as torchvision does it.

    ``ToTensor`` divides by 255, ``Normalize`` subtracts the mean and divides by std, all in float32. With BGR, mean
    and std are in the order blue, green, red.
    """
    ordered = pixels[..., ::-1] if spec.color_order is ColorOrder.BGR else pixels
    unit = ordered.astype(np.float32) / np.float32(255)
    mean, std = (np.asarray(levels, dtype=np.float32) for levels in (spec.mean, spec.std))
    values = (unit - mean) / std
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2) if layout is Layout.NCHW else values)
