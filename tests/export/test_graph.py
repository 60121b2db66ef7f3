from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from vdali.export.graph import (
    FOLD_BYTES,
    fold_constants,
    fuse_pads,
    make_room,
    prune,
    remove_identities,
    rename,
    simplify,
)

N = helper.make_node


def model_of(nodes, constants=(), shape=("n", 3, 6, 6), output="y"):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(model, seed=0, shape=(2, 3, 6, 6)):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return session.run(None, {name: np.random.default_rng(seed).normal(size=shape).astype(np.float32)})[0]


def kinds(model):
    return [node.op_type for node in model.graph.node]


def test_nodes_of_constants_become_weights():
    nodes = [
        N("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2), "v")),
        N("Mul", ["w", "two"], ["w2"]),
        N("Reshape", ["w2", "shape"], ["w3"]),
        N("Add", ["x", "w3"], ["y"]),
    ]
    model = model_of(nodes, {"w": np.arange(3, dtype=np.float32), "shape": [3, 1, 1]})
    wanted = run(model)
    fold_constants(model)
    assert kinds(model) == ["Add"]
    assert np.array_equal(run(model), wanted)


def test_quantised_weights_random_nodes_and_huge_results_are_not_folded():
    side = int((FOLD_BYTES // 4) ** 0.5) + 1
    nodes = [
        N("DequantizeLinear", ["q", "scale"], ["w"]),
        N("RandomNormal", [], ["r"], shape=[1]),
        N("Expand", ["scale", "big"], ["e"]),
        N("ReduceMax", ["e"], ["m"], keepdims=0),
        N("Sum", ["x", "w", "r", "m"], ["y"]),
    ]
    model = model_of(nodes, {"q": np.int8([1, 2, 3, 4, 5, 6]), "scale": np.float32(0.5), "big": [side, side]})
    fold_constants(model)
    assert kinds(model) == ["DequantizeLinear", "RandomNormal", "Expand", "ReduceMax", "Sum"]


def test_identities_go_and_the_output_is_found_under_its_real_name():
    nodes = [
        N("Identity", ["w"], ["v"]),
        N("Mul", ["x", "v"], ["z"]),
        N("Identity", ["z"], ["a"]),
        N("Identity", ["a"], ["y"]),
    ]
    model = model_of(nodes, {"w": np.float32(3)})
    wanted = run(model)
    remove_identities(model)
    assert kinds(model) == ["Mul"]
    assert model.graph.output[0].name == "z"
    assert np.array_equal(run(model), wanted)


def test_pruning_keeps_what_an_inner_tensor_needs_and_subgraphs_outer_names():
    def branch(source):
        return helper.make_graph(
            [N("Add", [source, "w"], [f"{source}_out"])],
            source,
            [],
            [helper.make_tensor_value_info(f"{source}_out", TensorProto.FLOAT, None)],
        )

    nodes = [
        N("Relu", ["x"], ["a"]),
        N("Neg", ["x"], ["b"]),
        N("If", ["yes"], ["c"], then_branch=branch("a"), else_branch=branch("b")),
        N("Exp", ["x"], ["unused"]),
        N("Mul", ["c", "unused"], ["y"]),
    ]
    model = model_of(nodes, {"w": np.float32(3), "yes": True, "other": np.float32(1)})
    prune(model, "c")
    assert kinds(model) == ["Relu", "Neg", "If"]
    assert {tensor.name for tensor in model.graph.initializer} == {"w", "yes"}
    before = run(model)
    rename(model, {"a": "renamed", "w": "weight"})
    assert np.array_equal(run(model), before)


def test_reserved_names_are_freed_without_a_clash():
    nodes = [N("Relu", ["x"], ["mask"]), N("Neg", ["mask"], ["core_mask"]), N("Add", ["mask", "core_mask"], ["y"])]
    model = model_of(nodes)
    wanted = run(model)
    make_room(model, ["mask", "y"], keep=["y"])
    names = {name for node in model.graph.node for name in node.output}
    assert "mask" not in names
    assert "y" in names
    assert np.array_equal(run(model), wanted)


def conv(**attributes):
    return N("Conv", ["p", "w"], ["y"], **attributes)


WEIGHTS = {"w": np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)}


def test_zero_padding_moves_into_the_convolution_that_reads_it():
    for inputs in (["x", "pads"], ["x", "pads", "zero"]):
        pads = [0, 0, 0, 1, 0, 0, 2, 1]
        model = model_of(
            [N("Pad", inputs, ["p"]), conv(pads=[1, 1, 1, 1], strides=[2, 2])],
            {"pads": pads, "zero": np.float32(0), **WEIGHTS},
        )
        wanted = run(model)
        fuse_pads(model)
        assert kinds(model) == ["Conv"]
        assert np.allclose(run(model), wanted, atol=1e-5)


def test_other_padding_stays():
    spatial = [0, 0, 1, 1, 0, 0, 1, 1]
    cases = [
        ([N("Pad", ["x", "pads", "one"], ["p"]), conv()], {"pads": spatial, "one": np.float32(1)}),
        ([N("Pad", ["x", "pads"], ["p"], mode="reflect"), conv()], {"pads": spatial}),
        ([N("Pad", ["x", "pads"], ["p"]), conv()], {"pads": [0, 0, -1, 0, 0, 0, 0, 0]}),
        ([N("Pad", ["x", "pads"], ["p"]), conv(auto_pad="SAME_UPPER")], {"pads": spatial}),
        (
            [
                N("Pad", ["x", "pads"], ["p"]),
                N("Conv", ["p", "w"], ["c"]),
                N("ReduceMax", ["p"], ["m"]),
                N("Add", ["c", "m"], ["y"]),
            ],
            {"pads": spatial},
        ),
        ([N("Pad", ["x", "pads", "", "axes"], ["p"]), conv()], {"pads": [1, 1], "axes": [3]}),
    ]
    for nodes, constants in cases:
        model = model_of(nodes, {**constants, **WEIGHTS})
        wanted = run(model)
        fuse_pads(model)
        assert "Pad" in kinds(model)
        assert np.array_equal(run(model), wanted)


def test_simplified_models_are_valid_and_hold_no_notes():
    nodes = [N("Pad", ["x", "pads"], ["p"], doc_string="/home/someone/net.py:12"), conv()]
    model = model_of(nodes, {"pads": [0, 0, 1, 1, 0, 0, 1, 1], **WEIGHTS})
    helper.set_model_props(model, {"author": "someone"})
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/home/someone")
    wanted = run(model)
    simplify(model)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 6, 6]))
    onnx.checker.check_model(model, full_check=True)
    assert b"someone" not in model.SerializeToString()
    assert {tensor.name for tensor in model.graph.initializer} == {"w"}
    assert np.allclose(run(model), wanted, atol=1e-5)
