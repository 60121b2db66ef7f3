"""Shifts: what int8 adds to channels' means, layer by layer, each reading inputs that are mended already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from int8_models import attending, convolutional, pictures
from onnx import ModelProto, TensorProto, helper
from vdali.export.int8.layers import int8_places
from vdali.export.int8.nodes import Calibration, with_qdq
from vdali.export.int8.ranges import measure_int8_ranges
from vdali.export.int8.shifts import measure_shifts
from vdali.export.session import KEEP_QDQ, run_of


def means(model: ModelProto, tensor: str, pixels: np.ndarray) -> np.ndarray:
    """Mean of each channel (axis 1)."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    if tensor not in [value.name for value in shown.graph.output]:
        shown.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None))
    values = run_of(shown.SerializeToString(), Path("model"), config=KEEP_QDQ)(pixels)[tensor]
    return values.mean(axis=(0, *range(2, values.ndim)))


@pytest.mark.parametrize("opset", [13, 18])
def test_the_shift_of_the_first_layer_is_the_difference_of_means(opset: int) -> None:
    model, _ = convolutional(opset=opset)
    places, made = int8_places(model), pictures(8)
    ranges = measure_int8_ranges(model, places.sources, made)
    int8 = with_qdq(model, places, Calibration(ranges, {}))
    shifts = measure_shifts(model, int8, places, made)
    wanted = means(int8, "first", made.pixels) - means(model, "first", made.pixels)
    np.testing.assert_allclose(shifts["first"], wanted, atol=1e-5)
    assert set(shifts) == {"first", "block", "depth", "logits"}


def test_means_of_all_layers_are_right_once_the_shifts_are_taken_off() -> None:
    model, _ = convolutional()
    places, made = int8_places(model), pictures(8)
    ranges = measure_int8_ranges(model, places.sources, made)
    plain = with_qdq(model, places, Calibration(ranges, {}))
    mended = with_qdq(model, places, Calibration(ranges, measure_shifts(model, plain, places, made)))
    for tensor in ("first", "block", "depth", "logits"):
        wanted = means(model, tensor, made.pixels)
        before = np.abs(means(plain, tensor, made.pixels) - wanted).max()
        after = np.abs(means(mended, tensor, made.pixels) - wanted).max()
        assert after < 0.02 * before, tensor


def test_a_layer_with_no_place_for_a_bias_has_no_shift() -> None:
    model, _ = attending()
    places = int8_places(model)
    ranges = measure_int8_ranges(model, places.sources, pictures(8))
    int8 = with_qdq(model, places, Calibration(ranges, {}))
    shifts = measure_shifts(model, int8, places, pictures(8))
    assert set(shifts) == {"patches", "product"}
    assert {shift.shape for shift in shifts.values()} == {(16,)}


def test_the_bias_of_a_matrix_product_is_mended_in_the_addition_behind_it() -> None:
    model, _ = attending()
    places, made = int8_places(model), pictures(8)
    ranges = measure_int8_ranges(model, places.sources, made)
    plain = with_qdq(model, places, Calibration(ranges, {}))
    mended = with_qdq(model, places, Calibration(ranges, measure_shifts(model, plain, places, made)))
    # tokens lie along axis 1 of "biased", channels along axis 2: the mean over pictures tells both
    wanted = means(model, "embedding", made.pixels)
    before = np.abs(means(plain, "embedding", made.pixels) - wanted).max()
    assert np.abs(means(mended, "embedding", made.pixels) - wanted).max() < 0.2 * before
