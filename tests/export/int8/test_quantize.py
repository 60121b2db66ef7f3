"""int8 graphs: Q/DQ where it pays and nowhere else, close to fp32, and what TensorRT takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from int8_models import SIZE, attending, constant, convolutional, pictures, with_constant
from models import mean_colour_model
from onnx import ModelProto, NodeProto, TensorProto
from vdali.engine.errors import ModelError
from vdali.engine.plans.flavour import load_flavour
from vdali.engine.plans.options import PlanOptions
from vdali.engine.spec import Precision
from vdali.export.half import half_from
from vdali.export.int8.quantize import quantize
from vdali.export.kept import spec_of
from vdali.export.lint import check, lint
from vdali.export.plans.build import build_plan
from vdali.export.session import KEEP_QDQ, run_of

BOTH = pytest.mark.parametrize("make", [convolutional, attending])
TRIAL = pictures(16, seed=7).pixels


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def rtx():
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    return load_flavour("tensorrt_rtx")


def made_by(model: ModelProto) -> dict[str, NodeProto]:
    return {name: node for node in model.graph.node for name in node.output}


def raw(model: ModelProto, name: str) -> np.ndarray:
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    if name not in [value.name for value in shown.graph.output]:
        shown.graph.output.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return run_of(shown.SerializeToString(), Path("model"), config=KEEP_QDQ)(TRIAL)[name]


def error(model: ModelProto, reference: ModelProto, name: str) -> float:
    got, wanted = raw(model, name), raw(reference, name)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def quantised_inputs(model: ModelProto) -> dict[str, list[int]]:
    """Node names, and which of their inputs come from a DequantizeLinear."""
    makers = made_by(model)
    found = {}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        places = [
            place
            for place, name in enumerate(node.input)
            if name in makers and makers[name].op_type == "DequantizeLinear"
        ]
        if places:
            found[node.name] = places
    return found


def test_layers_and_skip_inputs_are_quantised_and_nothing_else_is() -> None:
    model, names = quantize(*convolutional(), pictures())
    assert quantised_inputs(model) == {"first": [0, 1], "block": [0, 1], "sum": [1], "depth": [0, 1], "logits": [0, 1]}
    assert set(names) == set(quantised_inputs(model))


def test_products_of_activations_normalisation_and_softmax_stay_fp32() -> None:
    model, names = quantize(*attending(), pictures())
    assert quantised_inputs(model) == {name: [0, 1] for name in ("patches", "query", "key", "product")}
    assert set(names) == set(quantised_inputs(model))


@BOTH
def test_scales_are_symmetric_per_tensor_for_activations_and_per_channel_for_weights(make) -> None:
    model, _ = quantize(*make(), pictures())
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale, zero = stored[node.input[1]], stored[node.input[2]]
            assert zero.dtype == np.int8
            assert zero.shape == scale.shape
            assert not zero.any()
            assert (scale > 0).all()
            weights = stored.get(node.input[0])
            if weights is None:
                assert scale.shape == ()
            else:
                axis = next(entry.i for entry in node.attribute if entry.name == "axis")
                assert scale.shape == (weights.shape[axis],)
                assert np.abs(weights.astype(int)).max() == 127
    check(model)
    onnx.checker.check_model(model, full_check=True)


@BOTH
def test_every_other_node_and_every_tensor_is_as_before(make) -> None:
    model, spec = make()
    before = model.SerializeToString(deterministic=True)
    quantised, _ = quantize(model, spec, pictures())
    assert model.SerializeToString(deterministic=True) == before
    others = [node for node in quantised.graph.node if node.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    assert [(node.name, node.op_type, list(node.output)) for node in others] == [
        (node.name, node.op_type, list(node.output)) for node in model.graph.node
    ]
    assert list(quantised.graph.output) == list(model.graph.output)
    assert spec_of(quantised, file="model") == spec


@BOTH
@pytest.mark.parametrize("opset", [13, 18])
def test_int8_is_close_to_fp32(make, opset) -> None:
    model, spec = make(opset=opset) if make is convolutional else make()
    quantised, _ = quantize(model, spec, pictures())
    assert 0 < error(quantised, model, spec.raw_output) < 0.03


def test_weights_are_stored_as_int8_once() -> None:
    model, _ = quantize(*convolutional(), pictures())
    floats = {tensor.name for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    assert not floats & {"w first", "w block", "w depth", "w linear"}
    assert {"w reduce", "w expand"} <= floats


def test_an_activation_that_several_nodes_read_is_quantised_once() -> None:
    model, _ = quantize(*convolutional(), pictures())
    read = [node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    assert sorted(read) == ["centred", "first relu", "flat", "sum"]


def test_a_dead_channel_has_a_scale_and_gives_what_it_gave() -> None:
    model, spec = convolutional(dead_channel=True)
    quantised, _ = quantize(model, spec, pictures())
    assert lint(quantised) == []
    scales = constant(quantised, "int8/w block/axis0/scale")
    assert scales[3] > 0
    assert not raw(quantised, "block")[:, 3].any()
    assert error(quantised, model, "logits") < 0.03


def test_an_activation_that_is_always_zero_has_a_scale() -> None:
    model, spec = convolutional()
    for name in ("w first", "b first"):
        model = with_constant(model, name, np.zeros_like(constant(model, name)))
    quantised, _ = quantize(model, spec, pictures())
    assert lint(quantised) == []
    assert np.isfinite(raw(quantised, "logits")).all()


def test_kept_nodes_stay_fp32_and_so_does_what_hangs_on_them() -> None:
    model, names = quantize(*convolutional(), pictures(), kept=["block", "logits"])
    assert quantised_inputs(model) == {"first": [0, 1], "depth": [0, 1]}
    assert set(names) == {"first", "depth"}
    model, names = quantize(*convolutional(), pictures(), kept=["sum"])
    assert "sum" not in quantised_inputs(model)
    assert "block" in names


def test_keeping_layers_brings_the_result_nearer() -> None:
    model, spec = convolutional()
    every, names = quantize(model, spec, pictures())
    none, _ = quantize(model, spec, pictures(), kept=[name for name in names if name != "first"])
    assert error(none, model, "logits") < error(every, model, "logits")


def test_nodes_without_names_are_named_first() -> None:
    model, spec = convolutional()
    for node in model.graph.node:
        node.name = ""
    quantised, names = quantize(model, spec, pictures())
    assert len(set(names)) == len(quantised_inputs(quantised)) == 5


def test_a_model_with_nothing_to_quantise_is_refused(tmp_path: Path) -> None:
    model = onnx.load(mean_colour_model(tmp_path / "model.onnx", SIZE))
    with pytest.raises(ModelError, match="mean_colour has no layer that gains from int8"):
        quantize(model, spec_of(model, file="model"), pictures())


@pytest.mark.parametrize("name", ["w first", "w linear"])
def test_weights_that_are_nan_are_refused(name: str) -> None:
    model, spec = convolutional()
    values = constant(model, name).copy()
    values.flat[0] = np.nan
    with pytest.raises(ModelError, match="NaN or infinity"):
        quantize(with_constant(model, name, values), spec, pictures())


@BOTH
def test_scales_are_fp16_numbers_so_that_codes_fit_both(make) -> None:
    model, spec = make()
    int8, _ = quantize(model, spec, pictures())
    half = half_from(int8, spec, Precision.INT8_FP16, ())
    check(half)
    onnx.checker.check_model(half, full_check=True)
    scales = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in int8.graph.initializer}
    found = 0
    for tensor in half.graph.initializer:
        if tensor.name.endswith("/scale/float16"):
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), scales[tensor.name[: -len("/float16")]])
            found += 1
    assert found >= 6


@BOTH
@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FP16])
def test_tensorrt_builds_a_plan_with_a_dynamic_batch(rtx, tmp_path: Path, make, precision) -> None:
    model, spec = make()
    quantised, _ = quantize(model, spec, pictures())
    if precision is Precision.INT8_FP16:
        quantised = half_from(quantised, spec, precision, ())
    path = tmp_path / "model.onnx"
    onnx.save(quantised, path)
    assert build_plan(path, PlanOptions(targets=("sm89",)), flavour=rtx).data
