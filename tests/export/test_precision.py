"""From fp32 to another precision: only what the gate accepts is left behind, with what was kept and why."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import mean_colour_model, red_segmenter, tiny_classifier
from onnx import TensorProto
from pictures import encoded
from PIL import Image
from precision_models import cancelling, embedder, normalizing, overflowing, scaled, small_convnet, with_nan
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.errors import AgreementError, ModelError, UsageError
from vdali.engine.preprocess import ResizeMode
from vdali.engine.sources.memory import MemorySource
from vdali.engine.spec import Precision, Task
from vdali.export.agreement import Limits
from vdali.export.calibration import CalibrationSet, calibration_set
from vdali.export.kept import kept_of, spec_of
from vdali.export.model import export_model
from vdali.export.options import ExportOptions
from vdali.export.precision import PrecisionReport, export_precision
from vdali.export.store import resolve_model
from vdali.export.typed import element_types
from vdali.export.validate import validate


def spec_in(path: Path) -> Any:
    return spec_of(onnx.load(path, load_external_data=False), file=str(path))


def pictures_for(path: Path, count: int = 12) -> CalibrationSet:
    source = MemorySource([(f"{number}.png", encoded(340 * number + 5, "PNG", (20, 30))) for number in range(count)])
    return calibration_set(source, spec_in(path))


def made(path: Path, out: Path, precision: Precision = Precision.FP16, **options: Any) -> PrecisionReport:
    return export_precision(path, out, precision, pictures=pictures_for(path), **options)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("make", [mean_colour_model, tiny_classifier, red_segmenter, normalizing])
def test_a_good_model_is_written_with_its_precision_in_the_spec(
    tmp_path: Path, make: Any, precision: Precision
) -> None:
    path, out = make(tmp_path / "model.onnx"), tmp_path / "out" / "other.onnx"
    report = made(path, out, precision)
    assert report.precision is precision
    assert report.size_bytes == out.stat().st_size
    assert report.kept == ()
    assert report.seconds > 0
    assert spec_in(out).precision is precision
    assert spec_in(out).to_json() | {"precision": "fp32"} == spec_in(path).to_json()
    assert [file.name for file in out.parent.iterdir()] == ["other.onnx"]


def test_an_fp16_file_runs_like_any_other(tmp_path: Path) -> None:
    path, out = tiny_classifier(tmp_path / "model.onnx"), tmp_path / "half.onnx"
    made(path, out)
    pixels = pictures_for(path).pixels
    fp32, fp16 = OnnxRuntimeEngine(path).infer(pixels), OnnxRuntimeEngine(out).infer(pixels)
    assert fp16["top_scores"].dtype == np.float32
    assert np.array_equal(fp16["top_labels"][:, 0], fp32["top_labels"][:, 0])


def test_an_overflowing_model_is_mended_and_says_where(tmp_path: Path) -> None:
    path, out = overflowing(tmp_path / "model.onnx"), tmp_path / "half.onnx"
    lines: list[str] = []
    report = made(path, out, report=lines.append)
    assert report.kept == ("step 1", "step 2")
    assert "|x| up to" in kept_of(onnx.load(out))["step 1"]
    assert any("step 1 stays fp32: |x| up to" in line for line in lines)
    assert report.agreement.non_finite == 0


def test_bf16_needs_no_range_analysis(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "model.onnx")
    assert made(path, tmp_path / "half.onnx", Precision.BF16).kept == ()


def test_a_model_that_fp16_spoils_keeps_its_worst_layers_in_fp32(tmp_path: Path) -> None:
    path, out = cancelling(tmp_path / "model.onnx"), tmp_path / "half.onnx"
    lines: list[str] = []
    report = made(path, out, report=lines.append)
    assert {"step 0", "step 1"} <= set(report.kept)
    assert "step 2" not in report.kept
    assert kept_of(onnx.load(out)).keys() == set(report.kept)
    assert lines[0].startswith("fp16 refused:")
    assert "kept in a higher precision, too" in lines[1]
    assert "step 1" in lines[1]


def test_a_model_that_cannot_be_mended_leaves_nothing(tmp_path: Path) -> None:
    path, out = cancelling(tmp_path / "model.onnx"), tmp_path / "out" / "half.onnx"
    with pytest.raises(AgreementError, match=r"worst \d+\.png"):
        made(path, out, limits=Limits(cosine_min=1.1))
    assert list(out.parent.iterdir()) == []


def test_a_refusal_leaves_an_earlier_file_as_it_was(tmp_path: Path) -> None:
    path, out = normalizing(tmp_path / "model.onnx"), tmp_path / "half.onnx"
    made(path, out)
    before = out.read_bytes()
    with pytest.raises(AgreementError):
        made(path, out, limits=Limits(cosine_min=1.1))
    assert out.read_bytes() == before


def test_the_same_export_gives_the_same_bytes(tmp_path: Path) -> None:
    path = cancelling(tmp_path / "model.onnx")
    for name in ("a.onnx", "b.onnx"):
        made(path, tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_weights_in_a_file_of_their_own_are_found_beside_the_model(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "model" / "model.onnx"
    path.parent.mkdir()
    model = onnx.load(
        embedder(tmp_path / "inline.onnx", [("MatMul", ["features", "mix"], {})], {"mix": np.eye(8, dtype=np.float32)})
    )
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=64)
    monkeypatch.chdir(tmp_path)
    assert made(path, tmp_path / "half.onnx").agreement.cosine_min > 0.9999  # type: ignore[operator]


def test_other_precisions_are_made_from_fp32_alone(tmp_path: Path) -> None:
    path, half = tiny_classifier(tmp_path / "model.onnx"), tmp_path / "half.onnx"
    made(path, half)
    with pytest.raises(UsageError, match="is fp16; other precisions are made from the fp32 file"):
        made(half, tmp_path / "again.onnx", Precision.BF16)


def test_nan_weights_are_a_model_error_and_leave_nothing(tmp_path: Path) -> None:
    path = with_nan(tiny_classifier(tmp_path / "good.onnx"), tmp_path / "bad.onnx", "weight")
    out = tmp_path / "out" / "half.onnx"
    with pytest.raises(ModelError, match="NaN or infinity for every picture"):
        made(path, out)
    assert not out.exists()
    assert list(out.parent.iterdir()) == []


@pytest.fixture
def convnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """fp32 model whose layers take int8; calibrations are cached in a folder of the test's own."""
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "cache"))
    return small_convnet(tmp_path / "model.onnx")


def noise_for(path: Path) -> CalibrationSet:
    random = np.random.default_rng(7)
    samples = []
    for number in range(24):
        coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        coarse.resize((16, 16), Image.Resampling.BICUBIC).save(buffer, "PNG")
        samples.append((f"{number}.png", buffer.getvalue()))
    return calibration_set(MemorySource(samples), spec_in(path))


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FP16])
def test_int8_is_calibrated_on_half_of_the_pictures_and_judged_on_all(
    tmp_path: Path, convnet: Path, precision: Precision
) -> None:
    lines: list[str] = []
    pictures, out = noise_for(convnet), tmp_path / "int8.onnx"
    report = export_precision(convnet, out, precision, pictures=pictures, report=lines.append)
    assert any("every other one (12) of 24 pictures" in line for line in lines)
    assert report.agreement.pictures == 24
    assert spec_in(out).precision is precision
    types = set(element_types(onnx.load(out)).values())
    assert TensorProto.INT8 in types
    assert (TensorProto.FLOAT16 in types) is (precision is Precision.INT8_FP16)
    assert report.kept == ()


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FP16])
def test_layers_are_taken_out_of_int8_until_the_limits_are_kept(
    tmp_path: Path, convnet: Path, precision: Precision
) -> None:
    pictures, out = noise_for(convnet), tmp_path / "int8.onnx"
    first = export_precision(convnet, out, precision, pictures=pictures).agreement.cosine_min
    assert first is not None
    lines: list[str] = []
    limits = Limits(cosine_min=1 - (1 - first) / 2)
    report = export_precision(convnet, out, precision, pictures=pictures, limits=limits, report=lines.append)
    assert report.agreement.cosine_min is not None
    assert report.agreement.cosine_min >= limits.cosine_min  # type: ignore[operator]
    assert 1 <= len(report.kept) < 4
    model = onnx.load(out)
    dequantised = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    readers = {node.name for node in model.graph.node if dequantised.intersection(node.input)}
    assert readers
    assert not readers.intersection(report.kept)
    assert any("kept in a higher precision, too: " + report.kept[0] in line for line in lines)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FP16])
def test_a_file_with_nothing_left_at_its_precision_is_never_written(
    tmp_path: Path, convnet: Path, precision: Precision
) -> None:
    lines: list[str] = []
    out = tmp_path / "out.onnx"
    with pytest.raises(AgreementError):
        export_precision(
            convnet,
            out,
            precision,
            pictures=noise_for(convnet),
            limits=Limits(cosine_min=2),
            report=lines.append,
        )
    assert not out.exists()
    assert lines[-1] == f"{precision}: nothing of {spec_in(convnet).name} would be left in it."


def test_a_batch_baked_in_is_told_before_anything_runs(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, path)
    with pytest.raises(ModelError, match="the batch is fixed at 2"):
        made(path, tmp_path / "half.onnx")


def test_the_report_becomes_json(tmp_path: Path) -> None:
    report = made(overflowing(tmp_path / "model.onnx"), tmp_path / "half.onnx")
    values = json.loads(json.dumps(report.to_json()))
    assert values["kept"] == ["step 1", "step 2"]
    assert values["agreement"]["pictures"] == 12
    assert {"precision", "size_bytes", "export_s"} <= values.keys()


def test_efficientnet_lite0_gives_the_same_labels_in_fp16(tmp_path: Path, shared_data: Path) -> None:
    fp32, out = resolve_model("efficientnet_lite0", precision=Precision.FP32), tmp_path / "half.onnx"
    pictures = calibration_set(shared_data / "photos", spec_in(fp32))
    report = export_precision(fp32, out, Precision.FP16, pictures=pictures)
    assert report.agreement.top1 == 1
    assert report.size_bytes < 0.51 * fp32.stat().st_size
    before, after = (
        np.concatenate([engine.infer(batch)["top_labels"][:, 0] for batch in pictures.batches(8)])
        for engine in (OnnxRuntimeEngine(fp32), OnnxRuntimeEngine(out))
    )
    assert np.array_equal(after, before)


def test_one_doctored_layer_of_efficientnet_is_refused_with_the_worst_photo(tmp_path: Path, shared_data: Path) -> None:
    fp32, out = resolve_model("efficientnet_lite0", precision=Precision.FP32), tmp_path / "half.onnx"
    pictures = calibration_set(shared_data / "photos", spec_in(fp32), limit=8)
    export_precision(fp32, out, Precision.FP16, pictures=pictures)
    weight = weight_of_layer(out, 5)
    with pytest.raises(AgreementError, match=r"cosine_min -?0\.\d+ < 0\.999, worst \d+/.*\.jpg: cosine -?0"):
        validate(fp32, scaled(out, tmp_path / "x8.onnx", weight, 8.0), pictures)
    with pytest.raises(AgreementError, match=r"8 with NaN or infinity, first \d+/.*\.jpg"):
        validate(fp32, with_nan(out, tmp_path / "nan.onnx", weight), pictures)


def weight_of_layer(path: Path, number: int) -> str:
    """Name of the weight of a model's ``number``th convolution."""
    nodes = onnx.load(path).graph.node
    return [node.input[1] for node in nodes if node.op_type == "Conv"][number]


def test_deeplab_finds_the_bird_in_fp16_as_in_fp32(tmp_path: Path, shared_data: Path) -> None:
    fp32, out = tmp_path / "deeplab.onnx", tmp_path / "half.onnx"
    half_level = (128 / 255,) * 3
    options = ExportOptions(task=Task.SEGMENT, mean=half_level, std=half_level, mode=ResizeMode.SQUASH)
    export_model(str(shared_data / "models" / "deeplabv3_mnv2_dm05_pascal.fp32.onnx"), fp32, options)
    pictures = calibration_set(shared_data / "masks" / "bird_segmentation.bmp", spec_in(fp32))
    report = export_precision(fp32, out, Precision.FP16, pictures=pictures, largest_batch=4)
    assert report.agreement.iou_mean is not None
    assert report.agreement.iou_mean > 0.98
    with Image.open(shared_data / "masks" / "bird_segmentation_mask.bmp") as opened:
        truth = np.asarray(opened.resize(pictures.pixels.shape[2:0:-1], Image.Resampling.NEAREST))
    before, after = (bird_iou(OnnxRuntimeEngine(path).infer(pictures.pixels)["mask"][0], truth) for path in (fp32, out))
    assert before > 0.8
    assert abs(after - before) < 0.02


def bird_iou(mask: np.ndarray, truth: np.ndarray, bird: int = 3) -> float:
    known = truth != 255
    found, wanted = (mask == bird) & known, (truth == bird) & known
    return float((found & wanted).sum() / (found | wanted).sum())


@pytest.mark.slow
def test_a_vision_transformer_passes_in_both_half_precisions(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    fp32 = tmp_path / "vit.onnx"
    export_model("timm/vit_tiny_patch16_224", fp32, ExportOptions(weights="random"))
    pictures = calibration_set(None, spec_in(fp32), limit=6)
    for precision, least in ((Precision.FP16, 0.99999), (Precision.BF16, 0.999)):
        report = export_precision(fp32, tmp_path / "half.onnx", precision, pictures=pictures)
        assert report.agreement.cosine_min is not None
        assert report.agreement.cosine_min > least
