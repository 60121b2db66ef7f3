"""Blame for a converted model's errors: the node that spoils the result comes first, harmless ones far behind."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from pictures import encoded
from precision_models import SIZE, cancelling, embedder, normalizing, overflowing
from vdali.engine.sources.memory import MemorySource
from vdali.engine.spec import Precision
from vdali.export.calibration import CalibrationSet, calibration_set
from vdali.export.half import half_from
from vdali.export.kept import spec_of
from vdali.export.rounding import rounded
from vdali.export.sensitivity import blame_of, tensor_errors
from vdali.export.session import open_session
from vdali.export.typed import float_tensors, prepared


def both(path: Path, precision: Precision = Precision.FP16) -> tuple[ModelProto, ModelProto, CalibrationSet]:
    model = prepared(onnx.load(path))
    spec = spec_of(model, file=str(path))
    source = MemorySource([(str(number), encoded(450 * number + 3, "PNG", SIZE)) for number in range(9)])
    return model, rounded(half_from(model, spec, precision, ())), calibration_set(source, spec)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_errors_are_relative_to_each_tensor(tmp_path: Path, precision: Precision) -> None:
    path = normalizing(tmp_path / "model.onnx")
    model, candidate, pictures = both(path, precision)
    errors = tensor_errors(model, candidate, tmp_path, pictures)
    assert list(errors) == float_tensors(model)
    assert errors["pixels"] == errors["unit"] == 0
    step = 2**-11 if precision is Precision.FP16 else 2**-8
    assert 0 < errors["mean"] < step
    expected = open_session(path)(pictures.pixels)["embedding"]
    onnx.save(candidate, tmp_path / "candidate.onnx")
    got = open_session(tmp_path / "candidate.onnx")(pictures.pixels)["embedding"]
    wanted = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert errors["embedding"] == pytest.approx(wanted, rel=1e-3)


def test_the_node_that_spoils_the_result_is_blamed_most(tmp_path: Path) -> None:
    model, candidate, pictures = both(cancelling(tmp_path / "model.onnx"))
    blame = blame_of(model, candidate, tmp_path, pictures)
    worst, second, *_ = blame.items()
    assert worst[0] == "step 1"
    assert worst[1] > 0.05
    assert second[1] < 0.01


def test_a_bad_tensor_that_is_lost_in_a_larger_one_is_hardly_blamed(tmp_path: Path) -> None:
    steps = [("Mul", ["features", "tiny"], {}), ("Add", ["features", "t0"], {})]
    model, candidate, pictures = both(embedder(tmp_path / "model.onnx", steps, {"tiny": 1e-7}))
    assert tensor_errors(model, candidate, tmp_path, pictures)["t0"] > 0.05
    assert blame_of(model, candidate, tmp_path, pictures).get("step 0", 0) < 0.001


def test_an_overflow_is_blamed_without_end(tmp_path: Path) -> None:
    model, candidate, pictures = both(overflowing(tmp_path / "model.onnx"))
    name, value = next(iter(blame_of(model, candidate, tmp_path, pictures).items()))
    assert name == "step 1"
    assert math.isinf(value)
