"""Pictures and models for runs that are to be held back by one thing."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
from models import IR_VERSION, OPSET, plain_preprocess
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from vdali.engine.spec import INPUT_NAME, METADATA_KEY, ModelSpec, Task


def photo(width: int, height: int, kind: str = "JPEG") -> bytes:
    """A picture with as much detail as a photo has."""
    rng = np.random.default_rng(width)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, kind)
    return buffer.getvalue()


def heavy_model(path: Path) -> Path:
    """Embed model of 48 x 48 pictures whose convolutions of 48 channels take some milliseconds a picture."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", [INPUT_NAME], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["pixels"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "second"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "second"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["d", "second"], ["e"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["e", "axes"], ["embedding"], keepdims=0),
    ]
    constants = {
        "first": rng.normal(0, 0.01, (48, 3, 3, 3)).astype(np.float32),
        "second": rng.normal(0, 0.01, (48, 48, 3, 3)).astype(np.float32),
        "axes": np.array([2, 3]),
    }
    graph = helper.make_graph(
        nodes,
        "heavy",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["n", 48, 48, 3])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", 48])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    spec = ModelSpec("heavy", Task.EMBED, plain_preprocess((48, 48)), raw_output="embedding", weights="random")
    helper.set_model_props(model, {METADATA_KEY: spec.dumps()})
    onnx.save(model, path)
    return path
