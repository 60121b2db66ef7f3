"""fp16 and bf16 graphs: what stays fp32, where casts stand, and that runtimes take them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from models import mean_colour_model, red_segmenter, tiny_classifier
from onnx import ModelProto, TensorProto, helper, numpy_helper
from precision_models import SIZE, WIDTH, embedder, node_of, normalizing, overflowing
from vdali.engine.errors import ModelError
from vdali.engine.plans.flavour import load_flavour
from vdali.engine.plans.options import BatchProfile, PlanOptions
from vdali.engine.spec import Precision
from vdali.export.half import half_from
from vdali.export.kept import spec_of
from vdali.export.plans.build import build_plan
from vdali.export.rounding import rounded
from vdali.export.session import open_session, run_of
from vdali.export.typed import element_types, prepared

PICTURES = np.random.default_rng(0).integers(0, 256, (5, *SIZE, 3), dtype=np.uint8)
HALVES = [Precision.FP16, Precision.BF16]


def half(path: Path, precision: Precision = Precision.FP16, kept: tuple[str, ...] = ()) -> ModelProto:
    model = onnx.load(path)
    converted = half_from(prepared(model), spec_of(model, file=str(path)), precision, kept)
    onnx.checker.check_model(converted, full_check=True)
    return converted


def outputs_of(model: ModelProto, pictures: np.ndarray = PICTURES) -> dict[str, np.ndarray]:
    return dict(run_of(model.SerializeToString(), Path("model.onnx"))(pictures))


def type_of(model: ModelProto, tensor: str) -> str:
    return TensorProto.DataType.Name(element_types(model)[tensor])


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("make", [mean_colour_model, tiny_classifier, red_segmenter, normalizing, overflowing])
def test_input_and_outputs_keep_their_names_and_types(tmp_path: Path, make: object, precision: Precision) -> None:
    before = onnx.load(make(tmp_path / "model.onnx"))  # type: ignore[operator]
    after = half(tmp_path / "model.onnx", precision)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert type_of(after, spec_of(before, file="model").raw_output) == "FLOAT"


@pytest.mark.parametrize("precision", HALVES)
def test_the_same_model_gives_the_same_bytes(tmp_path: Path, precision: Precision) -> None:
    path = normalizing(tmp_path / "model.onnx")
    assert half(path, precision).SerializeToString() == half(path, precision).SerializeToString()


def test_a_layer_normalization_stays_one_fp32_node_between_casts(tmp_path: Path) -> None:
    model = half(normalizing(tmp_path / "model.onnx"))
    assert Counter(node.op_type for node in model.graph.node)["LayerNormalization"] == 1
    node = node_of(model, "step 0")
    assert {type_of(model, name) for name in (*node.input, *node.output)} == {"FLOAT"}
    assert type_of(model, "features") == "FLOAT16"
    assert [type_of(model, name) for name in node_of(model, "step 1").input] == ["FLOAT16", "FLOAT16"]


def test_between_two_kept_nodes_nothing_is_rounded(tmp_path: Path) -> None:
    model = half(overflowing(tmp_path / "model.onnx"), kept=("step 1", "step 2"))
    assert node_of(model, "step 2").input[0] == node_of(model, "step 1").output[0] == "t1"
    assert type_of(model, "t1") == "FLOAT"
    assert type_of(model, "t0") == type_of(model, "t2/float16") == "FLOAT16"


def test_the_weights_of_half_nodes_are_stored_in_half_and_only_there(tmp_path: Path) -> None:
    model = half(tiny_classifier(tmp_path / "model.onnx"))
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert kinds["weight/float16"] == TensorProto.FLOAT16
    assert "weight" not in kinds


def test_a_constant_that_both_kinds_of_nodes_read_is_there_in_both_types(tmp_path: Path) -> None:
    model = half(overflowing(tmp_path / "model.onnx"), kept=("step 1",))
    assert {"factor", "factor/float16"} <= {tensor.name for tensor in model.graph.initializer}
    assert node_of(model, "step 1").input[1] == "factor"
    assert node_of(model, "step 3").input[1] == "factor/float16"


def test_scores_are_computed_in_fp32_after_the_logits(tmp_path: Path) -> None:
    model = half(tiny_classifier(tmp_path / "model.onnx"))
    for kind in ("Softmax", "TopK"):
        node = next(node for node in model.graph.node if node.op_type == kind)
        assert type_of(model, node.input[0]) == "FLOAT"
    matmul = next(node for node in model.graph.node if node.op_type == "MatMul")
    assert type_of(model, matmul.output[0]) == "FLOAT16"


def test_an_embedding_is_normalised_in_fp32(tmp_path: Path) -> None:
    steps = [("Mul", ["features", "large"], {})]
    path = embedder(tmp_path / "model.onnx", steps, {"large": 300.0})
    model = onnx.load(path)
    spec = spec_of(model, file="model")
    model.graph.node[-1].output[0] = "embedding_raw"
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "norm_axis"))
    model.graph.node.append(helper.make_node("ReduceL2", ["embedding_raw", "norm_axis"], ["norm"], name="norm"))
    model.graph.node.append(helper.make_node("Div", ["embedding_raw", "norm"], ["embedding"], name="unit"))
    spec = type(spec)(**{**{f: getattr(spec, f) for f in spec.__slots__}, "raw_output": "embedding_raw"})
    converted = half_from(prepared(model), spec, Precision.FP16, ())
    # 8 values of up to 1,200: the sum of squares is beyond fp16, as is the square of the least of them
    vectors = outputs_of(rounded(converted))["embedding"]
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-6)


def test_first_steps_on_pixels_stay_fp32(tmp_path: Path) -> None:
    model = half(normalizing(tmp_path / "model.onnx"))
    assert [type_of(model, name) for name in ("pixels", "unit")] == ["FLOAT", "FLOAT"]
    assert type_of(model, "mean") == "FLOAT16"


def test_an_operator_of_another_domain_and_all_it_makes_stay_fp32(tmp_path: Path) -> None:
    steps = [("Gelu", ["features"], {"domain": "com.microsoft"}), ("Tanh", ["t0"], {})]
    model = half(embedder(tmp_path / "model.onnx", steps))
    assert node_of(model, "step 0").input[0] == "features/float"
    assert node_of(model, "step 1").input[0] == "t0"
    reference = open_session(tmp_path / "model.onnx")(PICTURES)["embedding"]
    assert outputs_of(rounded(model))["embedding"] == pytest.approx(reference, abs=2e-3)


def test_what_a_subgraph_reads_stays_fp32(tmp_path: Path) -> None:
    path = embedder(tmp_path / "model.onnx", [("Tanh", ["features"], {}), ("Relu", ["t0"], {})])
    model = onnx.load(path)
    output = helper.make_tensor_value_info("inner", TensorProto.FLOAT, ["n", WIDTH])
    bodies = {
        f"{word}_branch": helper.make_graph([helper.make_node(kind, ["t0"], ["inner"])], word, [], [output])
        for word, kind in (("then", "Neg"), ("else", "Abs"))
    }
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.insert(len(model.graph.node) - 1, helper.make_node("If", ["yes"], ["t5"], name="if", **bodies))
    node_of(model, "step 1").input[0] = "t5"
    onnx.save(model, path)
    converted = half(path)
    assert type_of(converted, "t0") == "FLOAT"
    assert type_of(converted, "features") == "FLOAT16"
    reference = open_session(path)(PICTURES)["embedding"]
    assert outputs_of(rounded(converted))["embedding"] == pytest.approx(reference, abs=2e-3)


def test_constants_made_by_nodes_follow_the_nodes_that_read_them(tmp_path: Path) -> None:
    shape = np.array([1, WIDTH])
    half_value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    steps = [
        ("ConstantOfShape", ["shape"], {"value": half_value}),
        ("ConstantOfShape", ["shape"], {}),
        ("Add", ["t0", "t1"], {}),
        ("Constant", [], {"value_floats": [2.0] * WIDTH}),
        ("Mul", ["t2", "t3"], {}),
        ("Add", ["features", "t4"], {}),
    ]
    path = embedder(tmp_path / "model.onnx", steps, {"shape": shape})
    model = half(path)
    assert {type_of(model, name) for name in ("t0", "t1", "t2", "t4")} == {"FLOAT16"}
    reference = open_session(path)(PICTURES)["embedding"]
    assert outputs_of(model)["embedding"] == pytest.approx(reference, abs=5e-3)
    assert outputs_of(rounded(model))["embedding"] == pytest.approx(reference, abs=5e-3)


def test_the_scales_of_a_resize_stay_float(tmp_path: Path) -> None:
    path = red_segmenter(tmp_path / "model.onnx", SIZE)
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 2, 2], dtype=np.float32), "scales"))
    model.graph.node.insert(
        2, helper.make_node("Resize", ["planes", "", "scales"], ["large"], name="resize", mode="linear")
    )
    model.graph.node[3].input[0] = "large"
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("mask", TensorProto.UINT8, ["n", 16, 16]))
    onnx.save(model, path)
    converted = half(path)
    assert node_of(converted, "resize").input[2] == "scales"
    assert type_of(converted, "large") == "FLOAT16"
    assert np.array_equal(outputs_of(converted)["mask"], open_session(path)(PICTURES)["mask"])


def test_bf16_raises_the_opset_and_keeps_what_tensorrt_has_no_bf16_for(tmp_path: Path) -> None:
    path = embedder(tmp_path / "model.onnx", [("HardSwish", ["features"], {}), ("Tanh", ["t0"], {})])
    model = half(path, Precision.BF16)
    assert model.opset_import[0].version >= 22
    assert type_of(model, "features") == "BFLOAT16"
    assert {type_of(model, name) for name in (*node_of(model, "step 0").input, "t0")} == {"FLOAT"}
    assert type_of(half(path), node_of(half(path), "step 0").input[0]) == "FLOAT16"


def test_a_model_whose_opset_cannot_be_raised_is_refused_for_bf16_alone(tmp_path: Path) -> None:
    path = normalizing(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.node.insert(4, helper.make_node("Upsample", ["nothing"], ["nowhere"], name="old"))
    with pytest.raises(ModelError, match="cannot be raised to 22"):
        half_from(prepared(model), spec_of(model, file="model"), Precision.BF16, ())


def test_rounding_shows_the_overflow_that_the_cpu_provider_hides(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "model.onnx")
    naive, mended = half(path), half(path, kept=("step 1", "step 2"))
    reference = open_session(path)(PICTURES)["embedding"]
    assert outputs_of(naive)["embedding"] == pytest.approx(reference, rel=2e-3)
    assert np.isinf(outputs_of(rounded(naive))["embedding"]).any()
    assert outputs_of(rounded(mended))["embedding"] == pytest.approx(reference, rel=2e-3)


@pytest.mark.parametrize(("precision", "digits"), [(Precision.FP16, 11), (Precision.BF16, 8)])
def test_every_half_tensor_is_rounded_to_its_significant_bits(
    tmp_path: Path, precision: Precision, digits: int
) -> None:
    path = embedder(
        tmp_path / "model.onnx", [("Mul", ["features", "third"], {}), ("Mul", ["t0", "third"], {})], {"third": 1 / 3}
    )
    model = rounded(half(path, precision))
    model.graph.output.append(helper.make_tensor_value_info("t0", TensorProto.FLOAT, None))
    mantissa, _ = np.frexp(outputs_of(model)["t0"].astype(np.float64))
    assert np.array_equal(mantissa * 2**digits, np.rint(mantissa * 2**digits))
    assert not np.array_equal(mantissa * 2 ** (digits - 1), np.rint(mantissa * 2 ** (digits - 1)))


def test_the_cpu_provider_has_no_bf16_kernels(tmp_path: Path) -> None:
    """The day that it has some, bf16 files can be run as they are."""
    model = half(normalizing(tmp_path / "model.onnx"), Precision.BF16)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("make", [tiny_classifier, red_segmenter, normalizing])
def test_tensorrt_rtx_builds_what_is_written(tmp_path: Path, make: object, precision: Precision) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    path = tmp_path / "half.onnx"
    onnx.save(half(make(tmp_path / "model.onnx"), precision), path)  # type: ignore[operator]
    options = PlanOptions(targets=("sm89",), batch=BatchProfile(1, 2, 4))
    assert build_plan(path, options, flavour=load_flavour("tensorrt_rtx")).data
