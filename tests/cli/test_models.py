"""The command and models that cannot be used: status 5, or 4 where a package is missing, and what to do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import onnx
import pytest
from commands import run_vdali
from models import with_spec
from onnx import TensorProto, helper
from vdali.engine.spec import Precision


def test_a_plain_onnx_file_is_status_5_and_the_message_is_the_export_command(tmp_path, model, pictures):
    plain = onnx.load(model)
    del plain.metadata_props[:]
    onnx.save(plain, tmp_path / "plain.onnx")
    ended = run_vdali("run", pictures, "-m", tmp_path / "plain.onnx", "-o", tmp_path / "out")
    assert (ended.returncode, ended.stdout) == (5, "")
    assert f"Export it: vdali export {tmp_path}/plain.onnx --task classify|embed|segment" in ended.stderr
    assert "images" in ended.stderr
    assert os.listdir(tmp_path) == ["plain.onnx"]


def fixed_batch(path: Path, model: Path) -> Path:
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(proto, path)
    return path


def float_input(path: Path, model: Path) -> Path:
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(proto, path)
    return path


def without_output(path: Path, model: Path) -> Path:
    proto = onnx.load(model)
    proto.graph.output[0].name = "mean"
    proto.graph.node.append(helper.make_node("Identity", ["embedding"], ["mean"]))
    onnx.save(proto, path)
    return path


def cut(path: Path, model: Path) -> Path:
    path.write_bytes(model.read_bytes()[:300])
    return path


def text(path: Path, model: Path) -> Path:
    path.write_text("weights go here\n")
    return path


def empty(path: Path, model: Path) -> Path:
    path.touch()
    return path


def missing(path: Path, model: Path) -> Path:
    return path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (fixed_batch, "the batch is fixed at 4"),
        (float_input, "promises images: uint8"),
        (without_output, "lacks the outputs ['embedding']"),
        (cut, "cannot load"),
        (text, "cannot load"),
        (empty, "cannot load"),
        (missing, "There is no model file"),
    ],
)
def test_a_model_that_cannot_be_used_is_status_5(vdali, tmp_path, model, pictures, make, says):
    ended = vdali("run", pictures, "-m", make(tmp_path / "x.onnx", model), "-o", "out")
    assert (ended.status, ended.out) == (5, "")
    assert ended.err.startswith("vdali: ")
    assert says in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-m", "resnet"), "Unknown model 'resnet'. Give an ONNX file"),
        (("-m", "package.module:factory"), "To use a factory, export it first"),
    ],
)
def test_a_model_name_that_is_not_known_is_status_5(vdali, pictures, words, says):
    ended = vdali("run", pictures, *words, "-o", "out")
    assert ended.status == 5
    assert says in ended.err


def test_a_file_at_another_precision_is_status_5(vdali, tmp_path, model, pictures):
    shutil.copy(model, tmp_path / "half.onnx")
    with_spec(tmp_path / "half.onnx", precision=Precision.FP16)
    ended = vdali("run", pictures, "-m", "half.onnx", "-p", "fp32", "-o", "out")
    assert ended.status == 5
    assert "is fp16, but --precision fp32 was asked for. Use --precision fp16" in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("package.nowhere:factory", "--task", "embed"), "package.nowhere"),
        (("nowhere.onnx", "--task", "embed", "--resize", "8", "--crop", "8"), "nowhere.onnx"),
        (("resnet",), "Unknown model 'resnet'"),
    ],
)
def test_exports_that_cannot_be_end_with_a_message(vdali, tmp_path, words, says):
    ended = vdali("export", *words, "-o", "x.onnx")
    assert ended.status in (4, 5)
    assert says in ended.err
    assert os.listdir(tmp_path) == []
