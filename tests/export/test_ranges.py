"""Range analysis: what fp16 cannot hold is found in the fp32 model, on real pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from pictures import encoded
from precision_models import SIZE, cancelling, embedder, normalizing, overflowing, quantized
from vdali.engine.errors import ModelError
from vdali.engine.sources.memory import MemorySource
from vdali.export import ranges
from vdali.export.calibration import CalibrationSet, calibration_set
from vdali.export.kept import spec_of
from vdali.export.ranges import MARGIN, beyond_fp16, measure_ranges
from vdali.export.session import open_session
from vdali.export.typed import float_tensors, prepared


def pictures_for(path: Path, count: int = 9) -> CalibrationSet:
    spec = spec_of(onnx.load(path), file=str(path))
    source = MemorySource([(f"{number}.png", encoded(400 * number, "PNG", SIZE)) for number in range(count)])
    return calibration_set(source, spec)


def analysed(path: Path) -> dict[str, str]:
    model = prepared(onnx.load(path))
    return beyond_fp16(model, measure_ranges(model, path.parent, pictures_for(path)))


def test_ranges_are_those_of_the_tensors_over_all_pictures(tmp_path: Path) -> None:
    path = normalizing(tmp_path / "model.onnx")
    model, pictures = prepared(onnx.load(path)), pictures_for(path)
    found = measure_ranges(model, tmp_path, pictures)
    assert list(found) == float_tensors(model)
    for name in ("pixels", "features", "t0", "embedding"):
        values = open_session(path, also=name)(pictures.pixels)[name]
        assert found[name].low == pytest.approx(values.min(), rel=1e-5)
        assert found[name].high == pytest.approx(values.max(), rel=1e-5)


def test_the_batch_of_the_analysis_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = normalizing(tmp_path / "model.onnx")
    model, pictures = prepared(onnx.load(path)), pictures_for(path)
    whole = measure_ranges(model, tmp_path, pictures)
    monkeypatch.setattr(ranges, "BATCH", 1)
    alone = measure_ranges(model, tmp_path, pictures)
    assert {name: value.largest for name, value in alone.items()} == pytest.approx(
        {name: value.largest for name, value in whole.items()}, rel=1e-4, abs=1e-6
    )


def test_nodes_that_make_or_read_an_overflow_are_found_with_the_number(tmp_path: Path) -> None:
    found = analysed(overflowing(tmp_path / "model.onnx"))
    assert set(found) == {"step 1", "step 2"}
    assert "in 't1'" in found["step 1"]
    assert float(found["step 1"].split("up to ")[1].split()[0]) > 65504


def test_a_model_within_range_keeps_nothing(tmp_path: Path) -> None:
    assert analysed(normalizing(tmp_path / "model.onnx")) == {}


def test_the_margin_counts_below_the_limit_itself(tmp_path: Path) -> None:
    path = cancelling(tmp_path / "model.onnx")
    model = prepared(onnx.load(path))
    found = measure_ranges(model, tmp_path, pictures_for(path))
    assert 2000 < found["t0"].largest < 65504 / MARGIN
    assert beyond_fp16(model, found) == {}
    assert set(beyond_fp16(model, found, margin=40)) == {"step 0", "step 1"}


def test_constants_that_fp16_cannot_hold_keep_their_readers_in_fp32(tmp_path: Path) -> None:
    steps = [
        ("Add", ["features", "epsilon"], {}),
        ("Min", ["t0", "huge"], {}),
        ("Mul", ["t1", "small"], {}),
        ("Max", ["t2", "lowest"], {}),
    ]
    small = np.full(8, 1e-6, dtype=np.float32)
    constants = {"epsilon": 1e-12, "huge": 1e20, "small": small, "lowest": -np.inf}
    found = analysed(embedder(tmp_path / "model.onnx", steps, constants))
    assert found == {"step 0": "constant 'epsilon' is 1e-12", "step 1": "constant 'huge' holds 1e+20"}


def test_values_that_are_not_finite_count_as_out_of_range(tmp_path: Path) -> None:
    steps = [
        ("Div", ["features", "nothing"], {}),  # infinity
        ("Min", ["t0", "one"], {}),
        ("Mul", ["t1", "undefined"], {}),  # NaN
        ("Neg", ["t2"], {}),
        ("Where", ["no", "t3", "t1"], {}),
    ]
    constants = {"nothing": 0.0, "one": 1.0, "undefined": np.nan, "no": np.array(False)}
    assert set(analysed(embedder(tmp_path / "model.onnx", steps, constants))) == {f"step {i}" for i in range(5)}


def test_a_model_that_the_runtime_refuses_is_a_model_error(tmp_path: Path) -> None:
    path = normalizing(tmp_path / "model.onnx")
    pictures = pictures_for(path)
    model = prepared(onnx.load(path))
    model.graph.node.append(helper.make_node("NoSuchOperator", ["features"], ["other"], name="other"))
    with pytest.raises(ModelError, match="NoSuchOperator"):
        measure_ranges(model, tmp_path, pictures)


@pytest.mark.parametrize(("scale", "kept"), [(4e-5, False), (1e-6, False), (1e-8, True)])
def test_the_scales_of_int8_may_be_small_but_not_zero_in_fp16(tmp_path: Path, scale: float, kept: bool) -> None:
    path = quantized(tmp_path / "model.onnx")
    model = prepared(onnx.load(path))
    tensor = next(entry for entry in model.graph.initializer if entry.name == "weight scale")
    tensor.CopyFrom(numpy_helper.from_array(np.array(scale, dtype=np.float32), "weight scale"))
    found = beyond_fp16(model, measure_ranges(model, tmp_path, pictures_for(path)))
    assert (found == {"step 2": "scale 'weight scale' is 1e-08"}) if kept else (found == {})
