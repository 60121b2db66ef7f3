"""int8 graphs: explicit, symmetric Q/DQ around the layers that gain from it, ranges chosen on pictures.

::

    activation fp32 -> Q -> DQ -> Conv | ConvTranspose | Gemm | MatMul -> fp32
    weights int8 per channel -> DQ ---^      ^--- bias fp32, shift taken off

    fp32 -> Q -> DQ -> Add (skip input) <- Conv

That is what TensorRT reads: one scale for an activation, one for each output channel of weights, every zero point 0
and written out, no quantised bias. Pre- and post-processing, normalisation, softmax, GELU and products of activations
stay as they are, and so does every tensor's name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from onnx import ModelProto

from ...engine.errors import ModelError
from ...engine.spec import ModelSpec
from ..calibration import CalibrationSet
from ..typed import prepared
from .cache import cached_calibration
from .layers import int8_places
from .nodes import with_qdq

Report = Callable[[str], None]


def quantize(
    model: ModelProto,
    spec: ModelSpec,
    pictures: CalibrationSet,
    *,
    kept: Collection[str] = (),
    report: Report | None = None,
) -> tuple[ModelProto, tuple[str, ...]]:
    """int8 graph from an fp32 one, which is left as it is, and the names of the nodes that take int8.

    ``kept`` names nodes that stay fp32. Node names are those of ``typed.prepared``, and the metadata still says fp32.
    Ranges come from ``pictures``, or from the cache when model, preprocessing, pictures and tools are the same;
    ``report`` takes lines for people.

    Raises ModelError when nothing in the model can take int8, and when it gives values that are not finite.
    """
    model = prepared(model)
    everywhere = int8_places(model)
    if not everywhere.layers:
        reasons = ", ".join(f"{name}: {reason}" for name, reason in everywhere.left.items())
        raise ModelError(
            f"{spec.name} has no layer that gains from int8 ({reasons or 'no layers with constant weights'}). "
            "Choose fp16 or fp32."
        )
    calibration = cached_calibration(model, spec, everywhere, pictures, report or _silent)
    places = int8_places(model, kept)
    return with_qdq(model, places, calibration), places.names


def _silent(line: str) -> None:
    del line
