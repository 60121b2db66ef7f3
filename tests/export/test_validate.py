"""The gate: good candidates pass, doctored ones are refused, and the worst picture is named."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from models import mean_colour_model, nan_colour_model, red_segmenter, tiny_classifier, with_spec
from numpy.typing import NDArray
from onnx import numpy_helper
from pictures import colour_of, encoded
from precision_models import normalizing, overflowing, quantized, scaled, summing, with_nan
from vdali.engine.backends.onnxruntime import OnnxRuntimeEngine
from vdali.engine.errors import AgreementError, InferError, ModelError
from vdali.engine.preprocess import Preprocess
from vdali.engine.sources.memory import MemorySource
from vdali.engine.spec import Precision
from vdali.export.agreement import Agreement, Limits, default_limits
from vdali.export.calibration import CalibrationSet, calibration_set
from vdali.export.half import half_from
from vdali.export.kept import spec_of, stamp
from vdali.export.scores import Scores, iou
from vdali.export.session import Run, open_session
from vdali.export.typed import prepared
from vdali.export.validate import Candidate, batches, validate


def pictures_for(path: Path, count: int = 20) -> CalibrationSet:
    spec = spec_of(onnx.load(path), file=str(path))
    source = MemorySource([(f"{number}.png", encoded(97 * number + 1, "PNG", (20, 30))) for number in range(count)])
    return calibration_set(source, spec)


def half_file(path: Path, target: Path, kept: tuple[str, ...] = (), precision: Precision = Precision.FP16) -> Path:
    model = prepared(onnx.load(path))
    spec = spec_of(model, file=str(path))
    converted = half_from(model, spec, precision, kept)
    stamp(converted, spec, precision, dict.fromkeys(kept, "test"))
    onnx.save(converted, target)
    return target


def candidate(run: Run, precision: Precision = Precision.FP16) -> Candidate:
    return Candidate("fake plan", precision, run, "fake")


def changed(path: Path, change: Any) -> Candidate:
    """Candidate whose outputs are those of ``path`` after ``change(pixels, outputs)`` has had them."""
    run = open_session(path)

    def infer(pixels: NDArray[np.uint8]) -> Mapping[str, NDArray[Any]]:
        outputs = {name: value.copy() for name, value in run(pixels).items()}
        return change(pixels, outputs) or outputs

    return candidate(infer)


def refusal_of(reference: Path, judged: Path | Candidate, pictures: CalibrationSet, **options: Any) -> str:
    with pytest.raises(AgreementError) as caught:
        validate(reference, judged, pictures, **options)
    assert caught.value.exit_status == 5
    return str(caught.value)


@pytest.mark.parametrize("make", [mean_colour_model, tiny_classifier, red_segmenter, normalizing])
def test_an_honest_fp16_file_passes(tmp_path: Path, make: Any) -> None:
    path = make(tmp_path / "model.onnx")
    agreement = validate(path, half_file(path, tmp_path / "half.onnx"), pictures_for(path))
    assert agreement.precision is Precision.FP16
    assert agreement.pictures == 20
    assert agreement.non_finite == agreement.left_out == 0
    assert "rounded" in agreement.judged
    assert agreement.cosine_min is not None
    assert 0.9999 < agreement.cosine_min <= agreement.cosine_median <= 1.000001  # type: ignore[operator]


def test_bf16_is_judged_too_though_the_cpu_cannot_run_it(tmp_path: Path) -> None:
    path = normalizing(tmp_path / "model.onnx")
    agreement = validate(path, half_file(path, tmp_path / "half.onnx", precision=Precision.BF16), pictures_for(path))
    assert agreement.cosine_min is not None
    assert 0.99 < agreement.cosine_min < 0.999999


def test_batches_of_1_2_3_and_the_largest_are_run_and_every_picture_is_seen(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    sizes: list[int] = []

    def note(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> None:
        sizes.append(len(pixels))

    agreement = validate(path, changed(path, note), pictures_for(path, 50), largest_batch=16)
    assert agreement.batches == tuple(sizes) == (16, 1, 2, 3, 16, 16)
    for count, largest in ((1, 8), (5, 8), (22, 8), (23, 8), (64, 16)):
        seen = np.concatenate(list(batches(count, largest)))
        assert set(seen.tolist()) == set(range(count))


def test_an_overflow_that_the_cpu_provider_hides_is_refused(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "model.onnx")
    pictures = pictures_for(path)
    naive = half_file(path, tmp_path / "naive.onnx")
    shown = open_session(naive)(pictures.pixels)["embedding"]
    assert shown == pytest.approx(open_session(path)(pictures.pixels)["embedding"], rel=2e-3)
    message = refusal_of(path, naive, pictures)
    assert "with NaN or infinity" in message
    mended = half_file(path, tmp_path / "mended.onnx", kept=("step 1", "step 2"))
    assert validate(path, mended, pictures).non_finite == 0


def test_a_scale_times_eight_is_refused(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    pictures = pictures_for(path)
    good = half_file(path, tmp_path / "half.onnx")
    bad = scaled(good, tmp_path / "bad.onnx", "weight/float16", 8.0)
    message = refusal_of(path, bad, pictures)
    # all logits times 8: no cosine and no label shows it
    assert "norm_difference_max 7.0" in message
    assert "worst" in message
    assert ".png: length off by 70" in message


def test_one_nan_among_the_weights_is_refused_and_names_a_picture(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    bad = with_nan(half_file(path, tmp_path / "half.onnx"), tmp_path / "bad.onnx", "weight/float16")
    assert "20 with NaN or infinity, first 0.png" in refusal_of(path, bad, pictures_for(path))


def test_one_nan_picture_among_many_is_named(tmp_path: Path) -> None:
    path = mean_colour_model(tmp_path / "model.onnx")
    pictures = pictures_for(path)
    bad = nan_colour_model(tmp_path / "bad.onnx", colour_of(97 * 13 + 1))
    assert "1 with NaN or infinity, first 13.png" in refusal_of(path, bad, pictures)


def test_the_worst_picture_is_the_one_that_was_spoilt(tmp_path: Path) -> None:
    path = mean_colour_model(tmp_path / "model.onnx")
    pictures = pictures_for(path)
    target = open_session(path)(pictures.pixels[7:8])["embedding"]

    def spoil(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> None:
        hit = np.isclose(outputs["embedding"], target).all(axis=1)
        outputs["embedding"][hit] = outputs["embedding"][hit][:, ::-1] * [[1, 2, 3]]

    message = refusal_of(path, changed(path, spoil), pictures)
    assert "cosine_min" in message
    assert "worst 7.png: cosine" in message


def other_class(rank: int) -> Any:
    """Change of outputs that puts the class of ``rank`` (0 is the best) first."""

    def change(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> None:
        for name in ("top_labels", "top_scores"):
            outputs[name][:, [0, rank]] = outputs[name][:, [rank, 0]]

    return change


def test_other_labels_are_refused_with_both_classes(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    pictures = pictures_for(path)
    expected = open_session(path)(pictures.pixels)
    decided = expected["top_scores"][:, 1] < 0.9 * expected["top_scores"][:, 0]
    message = refusal_of(path, changed(path, other_class(1)), pictures, limits=Limits(top1=0.97))
    assert f"top1 {1 - decided.mean():.5f} < 0.97" in message
    worst = int(message.split("worst ")[1].split(".png")[0])
    assert f"class {expected['top_labels'][worst, 1]} instead of {expected['top_labels'][worst, 0]}" in message
    shares = expected["top_scores"][:, 1] / expected["top_scores"][:, 0]
    assert worst == shares.argmin()


def test_near_ties_of_the_reference_count_as_agreeing_unless_exactness_is_asked(tmp_path: Path) -> None:
    clear = tiny_classifier(tmp_path / "clear.onnx")
    path = scaled(clear, tmp_path / "model.onnx", "weight", 0.01)  # scores of all classes are close to 0.1
    pictures = pictures_for(path)
    agreement = validate(path, changed(path, other_class(1)), pictures, Limits(top1=1))
    assert agreement.top1 == 1
    assert agreement.top1_exact == 0
    assert "top-1 1.000, exact 0.000" in str(agreement)
    assert "top1_exact 0.0" in refusal_of(path, changed(path, other_class(1)), pictures, limits=Limits(top1_exact=0.97))
    assert "top1 0.0" in refusal_of(clear, changed(clear, other_class(4)), pictures, limits=Limits(top1=0.97))


def test_a_class_that_is_not_among_the_best_of_the_reference_is_no_tie(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")

    def foreign(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> None:
        absent = [min(set(range(10)) - set(row)) for row in outputs["top_labels"].tolist()]
        outputs["top_labels"][:, 0] = absent

    assert "top1 0.0" in refusal_of(path, changed(path, foreign), pictures_for(path), limits=Limits(top1=0.97))


def test_masks_are_judged_by_their_iou(tmp_path: Path) -> None:
    path = red_segmenter(tmp_path / "model.onnx")
    pictures = pictures_for(path)

    def wipe(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> None:
        outputs["mask"][pixels[:, 0, 0, 0] > 200, :16] ^= 1

    message = refusal_of(path, changed(path, wipe), pictures)
    assert "iou_min 0.25000 < 0.8" in message
    worst = int(message.split("worst ")[1].split(".png")[0])
    assert pictures.pixels[worst, 0, 0, 0] > 200


def test_rows_left_over_from_a_bigger_batch_are_refused(tmp_path: Path) -> None:
    path = mean_colour_model(tmp_path / "model.onnx")
    buffer = np.zeros((8, 3), dtype=np.float32)

    def stale(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> Mapping[str, NDArray[Any]]:
        if len(pixels) != 2:
            buffer[: len(pixels)] = outputs["embedding"]
        return {"embedding": buffer[: len(pixels)].copy()}

    assert "cosine_min" in refusal_of(path, changed(path, stale), pictures_for(path))
    buffer[:] = 0
    # few pictures come up in several batches: the bad one counts
    assert "cosine_min" in refusal_of(path, changed(path, stale), pictures_for(path, 4))


def test_more_rows_than_pictures_are_a_model_error(tmp_path: Path) -> None:
    path = mean_colour_model(tmp_path / "model.onnx")

    def padded(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> Mapping[str, NDArray[Any]]:
        return {"embedding": np.resize(outputs["embedding"], (8, 3))}

    with pytest.raises(ModelError, match=r"gives \[8, 3\] 'embedding' for a batch of 1"):
        validate(path, changed(path, padded), pictures_for(path))


def test_a_batch_that_fails_is_a_model_error_that_names_its_size(tmp_path: Path) -> None:
    path = mean_colour_model(tmp_path / "model.onnx")

    def refuse(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> None:
        if len(pixels) == 3:
            raise InferError("runtime_error", "no profile for 3")

    with pytest.raises(ModelError, match="fake plan fails on a batch of 3: no profile for 3"):
        validate(path, changed(path, refuse), pictures_for(path))


def test_an_engine_is_judged_by_its_outputs_alone(tmp_path: Path) -> None:
    for make in (mean_colour_model, tiny_classifier, red_segmenter):
        path = make(tmp_path / "model.onnx")
        engine = OnnxRuntimeEngine(path)
        agreement = validate(path, candidate(engine.infer), pictures_for(path))
        assert agreement.judged == "fake"
        assert agreement.cosine_min in (None, pytest.approx(1))
        assert agreement.iou_mean in (None, 1)


def test_q_dq_files_are_judged_with_fp32_arithmetic_between(tmp_path: Path) -> None:
    """The fused kernels of a CPU without VNNI saturate on these values and would give half of the sums."""
    path = summing(tmp_path / "model.onnx")
    model = onnx.load(quantized(tmp_path / "int8.onnx"))
    stamp(model, spec_of(model, file="model"), Precision.INT8, {})
    onnx.save(model, tmp_path / "int8.onnx")
    agreement = validate(path, tmp_path / "int8.onnx", pictures_for(path), Limits(norm_difference_max=0.2))
    assert "Q/DQ in fp32" in agreement.judged
    assert agreement.cosine_median == pytest.approx(1, abs=1e-3)


def test_limits_can_be_stated(tmp_path: Path) -> None:
    path = normalizing(tmp_path / "model.onnx")
    good = half_file(path, tmp_path / "half.onnx")
    pictures = pictures_for(path)
    assert "cosine_min" in refusal_of(path, good, pictures, limits=Limits(cosine_min=1.1))
    assert "cosine_p1" in refusal_of(path, good, pictures, limits=Limits(cosine_p1=1.1))
    assert "norm_difference_max" in refusal_of(path, good, pictures, limits=Limits(norm_difference_max=0))
    bad = scaled(good, tmp_path / "bad.onnx", "mix/float16", 8.0)
    loose = replace(default_limits(Precision.FP16), cosine_min=0.1, norm_difference_max=10)
    refusal_of(path, bad, pictures)
    assert validate(path, bad, pictures, loose).norm_difference_max > 0.1  # type: ignore[operator]


def test_another_model_or_preprocessing_is_no_candidate(tmp_path: Path) -> None:
    path = mean_colour_model(tmp_path / "model.onnx")
    other = with_spec(mean_colour_model(tmp_path / "other.onnx"), preprocess=Preprocess((8, 8), (8, 8)))
    with pytest.raises(ModelError, match="differ in preprocess"):
        validate(path, other, pictures_for(path))
    with pytest.raises(ModelError, match="differ in task"):
        validate(path, red_segmenter(tmp_path / "mask.onnx", (8, 8)), pictures_for(path))


def test_a_reference_that_is_nan_for_all_pictures_is_a_model_error(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    bad = with_nan(path, tmp_path / "bad.onnx", "weight")
    with pytest.raises(ModelError, match="itself gives NaN or infinity") as caught:
        validate(bad, path, pictures_for(path))
    assert not isinstance(caught.value, AgreementError)


def test_pictures_where_the_reference_itself_is_nan_are_left_out_and_counted(tmp_path: Path) -> None:
    path = nan_colour_model(tmp_path / "model.onnx", colour_of(97 * 3 + 1))
    agreement = validate(path, path, pictures_for(path))
    assert agreement.left_out == 1
    assert agreement.non_finite == 0


def test_a_reference_that_is_nan_for_most_pictures_is_a_model_error(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    spec = spec_of(onnx.load(path), file=str(path))
    scores = Scores(spec, [str(number) for number in range(8)])
    run = open_session(path, also="logits")
    good = run(np.zeros((8, 16, 16, 3), np.uint8))
    broken = {name: value.copy() for name, value in good.items()}
    broken["logits"][:5] = np.nan
    scores.add(np.arange(8), good, broken)
    with pytest.raises(ModelError, match="itself gives NaN or infinity for 5 of 8 pictures"):
        scores.agreement(Precision.FP16, "here", [8], "content")


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16, Precision.INT8, Precision.INT8_FP16])
def test_a_file_that_only_says_its_precision_is_refused(tmp_path: Path, precision: Precision) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    liar = with_spec(tiny_classifier(tmp_path / "liar.onnx"), precision=precision)
    with pytest.raises(ModelError, match=f"says {re.escape(precision)}, but nothing in it computes in"):
        validate(path, liar, pictures_for(path))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan])
def test_a_bad_scale_in_external_data_is_seen(tmp_path: Path, scale: float) -> None:
    path = summing(tmp_path / "model.onnx")
    model = onnx.load(quantized(tmp_path / "int8.onnx"))
    node = next(node for node in model.graph.node if node.op_type == "DequantizeLinear")
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
    values = np.full_like(numpy_helper.to_array(tensor), scale)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    bad = tmp_path / "bad.onnx"
    onnx.save(model, bad, save_as_external_data=True, location="bad.data", size_threshold=0)
    with pytest.raises(ModelError, match="scales must be positive and finite"):
        validate(path, bad, pictures_for(path))


def test_a_candidate_file_that_does_not_load_is_a_model_error(tmp_path: Path) -> None:
    path = normalizing(tmp_path / "model.onnx")
    bad = tmp_path / "bad.onnx"
    model = onnx.load(half_file(path, tmp_path / "half.onnx"))
    mixed = next(node for node in model.graph.node if node.name == "step 1")
    mixed.input[0] = "t0"  # fp32 beside an fp16 weight
    onnx.save(model, bad)
    with pytest.raises(ModelError, match="cannot load"):
        validate(path, bad, pictures_for(path))


def test_the_result_becomes_json_and_a_cell(tmp_path: Path) -> None:
    path = tiny_classifier(tmp_path / "model.onnx")
    agreement = validate(path, half_file(path, tmp_path / "half.onnx"), pictures_for(path))
    values = json.loads(json.dumps(agreement.to_json()))
    assert values["precision"] == "fp16"
    assert values["pictures"] == 20
    assert values["content"] == pictures_for(path).content
    assert str(agreement).endswith("top-1 1.000")
    assert isinstance(agreement, Agreement)


def test_iou_leaves_out_specks_and_counts_what_covers_a_hundredth() -> None:
    mask = np.zeros((100, 100), dtype=np.uint8)
    speck, bird = mask.copy(), mask.copy()
    speck[0, :5] = 7
    assert iou(speck, mask) == pytest.approx(0.9995)
    bird[:20] = 3
    part = mask.copy()
    part[:10] = 3
    assert iou(part, bird) == pytest.approx((0.5 + 8000 / 9000) / 2)
    many = np.arange(200, dtype=np.uint8).reshape(10, 20)
    assert iou(many, many) == 1


def test_a_row_of_zeros_agrees_only_with_another(tmp_path: Path) -> None:
    path = mean_colour_model(tmp_path / "model.onnx")
    black = calibration_set(MemorySource([("black.png", encoded(0, "PNG", (8, 8)))]), spec_of(onnx.load(path), file=""))
    black.pixels[:] = 0
    assert validate(path, path, black).cosine_min == 1

    def lift(pixels: NDArray[np.uint8], outputs: dict[str, Any]) -> None:
        outputs["embedding"] += 1

    assert "cosine_min 0.0" in refusal_of(path, changed(path, lift), black)
