from __future__ import annotations

import pytest
from vdali.engine.errors import ModelError, UsageError
from vdali.engine.preprocess import Interpolation, Preprocess, ResizeMode
from vdali.engine.spec import Task
from vdali.export.options import (
    ExportOptions,
    changed_preprocess,
    class_names,
    preprocess_from_mapping,
    stated_preprocess,
)

BASE = Preprocess(size=(224, 224), resize=(256, 256))


def test_options_replace_what_they_name_and_nothing_else():
    found = changed_preprocess(BASE, ExportOptions(interpolation=Interpolation.LANCZOS, mean=(0.1, 0.2, 0.3)))
    assert found.interpolation is Interpolation.LANCZOS
    assert found.mean == (0.1, 0.2, 0.3)
    assert (found.size, found.resize, found.std) == (BASE.size, BASE.resize, BASE.std)
    assert changed_preprocess(BASE, ExportOptions()) == BASE


def test_another_crop_keeps_the_models_share_of_the_resized_picture():
    assert changed_preprocess(BASE, ExportOptions(crop=(448, 448))).resize == (512, 512)
    assert changed_preprocess(BASE, ExportOptions(crop=(448, 448), resize=(448, 448))).resize == (448, 448)
    assert changed_preprocess(BASE, ExportOptions(resize=(224, 224))).size == (224, 224)


def test_a_model_that_states_nothing_needs_mean_std_and_size():
    with pytest.raises(UsageError, match="--crop and --mean and --std"):
        stated_preprocess(None, ExportOptions(), model="m")
    found = stated_preprocess((8, 8), ExportOptions(mean=(0.5,) * 3, std=(0.5,) * 3), model="m")
    assert (found.size, found.resize, found.mode) == ((8, 8), (8, 8), ResizeMode.SHORTER)
    wide = ExportOptions(mean=(0.5,) * 3, std=(0.5,) * 3, mode=ResizeMode.SQUASH)
    assert stated_preprocess((8, 12), wide, model="m").resize == (8, 12)


def test_a_factorys_dict_may_leave_out_all_but_the_size():
    assert preprocess_from_mapping({"size": 96}, model="m") == Preprocess(size=(96, 96), resize=(96, 96))
    full = preprocess_from_mapping({"size": (9, 8), "resize": [10, 12], "mode": "squash", "std": [1, 1, 1]}, model="m")
    assert (full.size, full.resize, full.std) == ((9, 8), (10, 12), (1.0, 1.0, 1.0))
    for bad, words in [
        ({}, "needs a size"),
        ({"size": 9, "colour": 1}, "no field colour"),
        ({"size": "big"}, "not usable"),
    ]:
        with pytest.raises(ModelError, match=words):
            preprocess_from_mapping(bad, model="m")


def test_options_of_one_task_are_refused_for_another():
    with pytest.raises(UsageError, match="--normalize"):
        ExportOptions(task=Task.CLASSIFY, normalize=True)
    with pytest.raises(UsageError, match="label offset"):
        ExportOptions(task=Task.EMBED, label_offset=1)
    with pytest.raises(UsageError, match=">= 0"):
        ExportOptions(label_offset=-1)


def test_class_names_come_from_the_file_or_from_a_model_with_as_many(tmp_path):
    assert class_names(ExportOptions(), ("a", "b"), 2) == ("a", "b")
    assert class_names(ExportOptions(), ("a", "b"), 3) is None
    (tmp_path / "names").write_text("x\ny z\n", encoding="utf-8")
    assert class_names(ExportOptions(classes=tmp_path / "names"), ("a", "b"), 2) == ("x", "y z")
    with pytest.raises(ModelError, match="Cannot read class names"):
        class_names(ExportOptions(classes=tmp_path / "gone"), None, 2)
