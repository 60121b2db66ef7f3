import numpy as np
import onnx
import pytest
from models import mean_colour_model, red_segmenter, tiny_classifier
from onnx import TensorProto, helper, numpy_helper
from vdali.engine.errors import ModelError
from vdali.engine.plans.flavour import load_flavour
from vdali.engine.plans.options import PlanOptions
from vdali.export.lint import QUANTIZATION_RULES, Finding, Rule, check, lint
from vdali.export.plans.build import build_plan

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, 8, 8])
TENTH = np.float32(0.1)
ZERO = np.int8(0)
OPSETS = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]


def graph(nodes, constants=None, *, inputs=(X,), outputs=(Y,)):
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    made = helper.make_graph(nodes, "smallest", list(inputs), list(outputs), tensors)
    return helper.make_model(made, opset_imports=OPSETS, ir_version=10)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, name=f"the_{outputs[0]}", **attributes)


def activation(scale=TENTH, zero_point=ZERO, **attributes):
    ends = ["s"] if zero_point is None else ["s", "z"]
    constants = {"s": scale} | ({} if zero_point is None else {"z": zero_point})
    nodes = [
        node("QuantizeLinear", ["x", *ends], ["q"], **attributes),
        node("DequantizeLinear", ["q", *ends], ["y"], **attributes),
    ]
    return graph(nodes, constants)


def weights(values, scales, *, axis=0):
    zeros = np.zeros(np.shape(scales), dtype=values.dtype)
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis), node("Conv", ["x", "d"], ["y"])]
    return graph(nodes, {"w": values, "s": scales, "z": zeros}, outputs=[float_output("n", 4, 8, 8)])


def float_output(*shape):
    return helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))


def int32_bias():
    constants = {"b": np.ones(3, np.int32), "s": np.full(3, TENTH), "z": np.zeros(3, np.int32)}
    shape = {"shape": np.array([1, 3, 1, 1])}
    nodes = [
        node("DequantizeLinear", ["b", "s", "z"], ["d"], axis=0),
        node("Reshape", ["d", "shape"], ["r"]),
        node("Add", ["x", "r"], ["y"]),
    ]
    return graph(nodes, constants | shape)


def computed_scale():
    nodes = [
        node("ReduceMax", ["x"], ["s"], keepdims=0),
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    return graph(nodes, {"z": np.int8(0)})


def half_scale_for_float():
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Add", ["d", "x"], ["y"]),
    ]
    return graph(nodes, {"s": np.float16(0.1), "z": ZERO})


def half_added_to_float():
    return graph([node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), node("Add", ["h", "x"], ["y"])])


def half_normalization(**attributes):
    nodes = [
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        node("LayerNormalization", ["h", "g"], ["l"], **attributes),
        node("Cast", ["l"], ["y"], to=TensorProto.FLOAT),
    ]
    return graph(nodes, {"g": np.ones(8, np.float16)})


def dynamic_quantization():
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    return graph(nodes)


def antialiased():
    resize = node("Resize", ["x", "", "scales"], ["y"], mode="linear", antialias=1)
    return graph([resize], {"scales": np.array([1, 1, 2, 2], np.float32)}, outputs=[float_output("n", 3, 16, 16)])


def foreign():
    return graph([node("Gelu", ["x"], ["y"], domain="com.microsoft")])


def uint8_transposed():
    pictures = helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 8, 8, 3])
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]), node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)]
    return graph(nodes, inputs=[pictures])


def uint8_in_between():
    return graph([node("Cast", ["x"], ["u"], to=TensorProto.UINT8), node("Cast", ["u"], ["y"], to=TensorProto.FLOAT)])


def double_output():
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", 3, 8, 8])
    return graph([node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)], outputs=[output])


def double_input():
    source = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 3, 8, 8])
    return graph([node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], inputs=[source])


def shaped(*shape, output=("n", 3, 8, 8)):
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    return graph([node("Relu", ["x"], ["y"])], inputs=[source], outputs=[float_output(*output)])


REFUSED = {
    "non-zero zero point": (activation(zero_point=np.int8(3)), Rule.ZERO_POINT, "the_q"),
    "scale 0": (activation(scale=np.float32(0)), Rule.SCALE, "the_q"),
    "negative scale": (activation(scale=np.float32(-1)), Rule.SCALE, "the_q"),
    "nan scale": (activation(scale=np.float32("nan")), Rule.SCALE, "the_q"),
    "one dead channel": (weights(np.ones((4, 3, 1, 1), np.int8), np.float32([1, 1, 0, 1])), Rule.SCALE, "the_d"),
    "too few scales": (weights(np.ones((4, 3, 1, 1), np.int8), np.full(3, TENTH)), Rule.SCALE, "the_d"),
    "int32 bias": (int32_bias(), Rule.QUANTIZED_TYPE, "the_d"),
    "int16": (activation(zero_point=np.int16(0)), Rule.QUANTIZED_TYPE, "the_q"),
    "dynamic quantisation": (dynamic_quantization(), Rule.INTEGER_OPERATOR, "the_q"),
    "antialias": (antialiased(), Rule.ANTIALIAS, "the_y"),
    "uint8 transposed": (uint8_transposed(), Rule.UINT8, "the_t"),
    "uint8 in between": (uint8_in_between(), Rule.UINT8, "the_u"),
    "half added to float": (half_added_to_float(), Rule.MIXED_TYPES, "the_y"),
    "half scale for float data": (half_scale_for_float(), Rule.MIXED_TYPES, "the_y"),
    "fixed batch": (shaped(2, 3, 8, 8), Rule.FIXED_BATCH, "x"),
    "no batch": (shaped(output=()), Rule.FIXED_BATCH, "x"),
    "open size": (shaped("n", 3, "h", "w"), Rule.OPEN_SIZE, "x"),
}
"""Graphs that TensorRT's parser, or the batch profile of a plan, refuses."""

MISREAD = {
    "uint8 zero point": (activation(zero_point=np.uint8(0)), Rule.QUANTIZED_TYPE, "the_q"),
    "no zero point": (activation(zero_point=None), Rule.ZERO_POINT, "the_q"),
    "infinite scale": (activation(scale=np.float32("inf")), Rule.SCALE, "the_q"),
    "computed scale": (computed_scale(), Rule.SCALE, "the_q"),
    "scales per channel": (
        activation(np.full(3, TENTH), np.zeros(3, np.int8), axis=1),
        Rule.ACTIVATION_SCALES,
        "the_q",
    ),
    "double output": (double_output(), Rule.DOUBLE, "y"),
    "double input": (double_input(), Rule.DOUBLE, "x"),
    "foreign operator": (foreign(), Rule.FOREIGN_OPERATOR, "the_y"),
    "half normalisation": (half_normalization(), Rule.HALF_NORMALIZATION, "the_l"),
}
"""Graphs that TensorRT builds as something else, or that cannot be checked."""

GOOD = {
    "activation": activation(),
    "weights": weights(np.ones((4, 3, 1, 1), np.int8), np.full(4, TENTH)),
    "half normalisation that says so": half_normalization(stash_type=TensorProto.FLOAT16),
    "float": shaped("n", 3, 8, 8),
}


@pytest.fixture(scope="module")
def rtx():
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    return load_flavour("tensorrt_rtx")


def built(model, folder, flavour):
    path = folder / "model.onnx"
    onnx.save(model, path)
    return build_plan(path, PlanOptions(targets=("sm89",)), flavour=flavour)


@pytest.mark.parametrize("name", REFUSED | MISREAD)
def test_each_rule_names_the_node_and_what_is_wrong(name):
    model, rule, node_name = (REFUSED | MISREAD)[name]
    findings = lint(model)
    assert (findings[0].node, findings[0].rule) == (node_name, rule)
    with pytest.raises(ModelError, match=rf"smallest:\n{node_name}: .* \[{rule}\]"):
        check(model)


@pytest.mark.parametrize("name", REFUSED)
def test_tensorrt_refuses_what_the_lint_says_it_does(rtx, tmp_path, name):
    with pytest.raises(ModelError):
        built(REFUSED[name][0], tmp_path, rtx)


@pytest.mark.parametrize("name", MISREAD)
def test_tensorrt_parses_what_the_lint_calls_silent_and_the_lint_stops_the_build(rtx, tmp_path, name):
    model, rule, _ = MISREAD[name]
    network = rtx.trt.Builder(rtx.log.logger).create_network(0)
    assert rtx.trt.OnnxParser(network, rtx.log.logger).parse(model.SerializeToString())
    with pytest.raises(ModelError, match=rf"\[{rule}\]"):
        built(model, tmp_path, rtx)


def test_a_check_may_be_of_some_rules_only():
    check(antialiased(), QUANTIZATION_RULES)
    with pytest.raises(ModelError, match="zero-point"):
        check(activation(zero_point=None), QUANTIZATION_RULES)


def test_scales_in_external_data_go_unseen(tmp_path):
    path = tmp_path / "model.onnx"
    model = weights(np.ones((4, 3, 1, 1), np.int8), np.float32([1, 1, 0, 1]))
    onnx.save(model, path, save_as_external_data=True, size_threshold=0)
    assert lint(onnx.load(path, load_external_data=False)) == []
    assert [finding.rule for finding in lint(onnx.load(path))] == [Rule.SCALE]


@pytest.mark.parametrize("name", GOOD)
def test_good_graphs_pass_and_build(rtx, tmp_path, name):
    assert lint(GOOD[name]) == []
    assert built(GOOD[name], tmp_path, rtx).data


@pytest.mark.parametrize("make", [mean_colour_model, tiny_classifier, red_segmenter])
def test_files_of_an_export_pass(tmp_path, make):
    check(onnx.load(make(tmp_path / "model.onnx")))


def test_constants_made_by_nodes_count_as_constants():
    model = activation()
    scale, zero = model.graph.initializer
    del model.graph.initializer[:]
    made = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in (scale, zero)]
    nodes = [*made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert lint(model) == []


def test_a_node_without_a_name_is_told_by_what_it_makes():
    model = antialiased()
    model.graph.node[0].name = ""
    assert lint(model) == [Finding("Resize of y", Rule.ANTIALIAS, "antialiased Resize")]


def test_nodes_inside_branches_are_seen():
    inner = antialiased().graph.node[0]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    branch = helper.make_graph([inner], "branch", [], outputs, [scales])
    choose = node("If", ["yes"], ["r"], then_branch=branch, else_branch=branch)
    model = graph([choose], {"yes": np.array(True)}, outputs=[helper.make_tensor_value_info("r", 1, None)])
    assert [finding.rule for finding in lint(model)] == [Rule.ANTIALIAS, Rule.ANTIALIAS]


def test_a_long_list_is_cut_short():
    nodes = [node("Gelu", [f"t{i}" if i else "x"], [f"t{i + 1}"], domain="com.microsoft") for i in range(12)]
    model = graph(nodes, outputs=[helper.make_tensor_value_info("t12", TensorProto.FLOAT, ["n", 3, 8, 8])])
    with pytest.raises(ModelError) as refused:
        check(model)
    assert str(refused.value).count("foreign-operator") == 8
    assert "and 4 more" in str(refused.value)
