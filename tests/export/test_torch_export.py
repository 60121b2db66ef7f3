from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from vdali.engine.errors import ModelError, UsageError
from vdali.engine.spec import Task
from vdali.export.model import export_model
from vdali.export.options import RANDOM, ExportOptions
from vdali.export.session import open_session
from vdali.export.verify import trial_pictures

from tests.export import toys


@pytest.fixture(autouse=True)
def _from_the_repository(monkeypatch):
    monkeypatch.chdir(__file__.rsplit("/tests/", 1)[0])


def export(tmp_path, name, task, **options):
    lines = []
    path = tmp_path / f"{name}.onnx"
    spec = export_model(f"tests.export.toys:{name}", path, ExportOptions(task=task, **options), lines.append)
    return path, spec, lines


def torch_rows(name, pictures, seed=0):
    torch.manual_seed(seed)
    net, stated = getattr(toys, name)()
    mean, std = (torch.tensor(stated[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.inference_mode():
        output = net.eval()((torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255 - mean) / std)
    return output["out"].numpy() if isinstance(output, dict) else output.numpy()


def refusal(tmp_path, name, task, error=ModelError, **options):
    with pytest.raises(error) as caught:
        export(tmp_path, name, task, **options)
    assert list(tmp_path.iterdir()) == []
    return str(caught.value)


def test_a_factorys_classifier_gives_the_scores_of_pytorch(tmp_path):
    path, spec, lines = export(tmp_path, "classifier", Task.CLASSIFY)
    pictures = trial_pictures((16, 16))
    wanted = torch.from_numpy(torch_rows("classifier", pictures)).softmax(1).numpy()
    found = open_session(path)(pictures)
    assert set(found) == {"top_scores", "top_labels"}
    assert np.allclose(found["top_scores"], np.sort(wanted)[:, ::-1][:, :5], atol=1e-6)
    assert (found["top_labels"] == np.argsort(-wanted, axis=1)[:, :5]).all()
    assert spec.raw_output == "logits"
    assert "tracing" not in " ".join(lines)


def test_a_network_left_in_training_mode_is_put_into_eval_mode(tmp_path):
    path, _, _ = export(tmp_path, "left_in_training_mode", Task.CLASSIFY)
    pictures = trial_pictures((16, 16))
    wanted = torch_rows("left_in_training_mode", pictures)
    assert np.allclose(open_session(path, also="logits")(pictures)["logits"], wanted, atol=1e-5)


def test_an_embedding_is_normalised_only_when_asked(tmp_path):
    pictures = trial_pictures((16, 16))
    wanted = torch_rows("embedder", pictures)
    raw, spec, _ = export(tmp_path, "embedder", Task.EMBED)
    assert np.allclose(open_session(raw)(pictures)["embedding"], wanted, atol=1e-5)
    assert not spec.normalize
    unit, spec, _ = export(tmp_path, "embedder", Task.EMBED, normalize=True)
    assert np.allclose(open_session(unit)(pictures)["embedding"], wanted / np.linalg.norm(wanted, axis=1)[:, None])
    assert spec.normalize
    assert spec.raw_output == "embedding_raw"


def test_a_segmenters_dict_needs_its_key_and_gives_masks(tmp_path):
    assert "out, aux" in refusal(tmp_path, "segmenter", Task.SEGMENT, UsageError)
    path, _, _ = export(tmp_path, "segmenter", Task.SEGMENT, output="out")
    pictures = trial_pictures((16, 16))
    mask = open_session(path)(pictures)["mask"]
    assert mask.dtype == np.uint8
    assert (mask == torch_rows("segmenter", pictures).argmax(1)).mean() > 0.999


def test_class_ids_made_by_the_network_itself_are_kept(tmp_path):
    path, spec, _ = export(tmp_path, "class_ids", Task.SEGMENT)
    pictures = trial_pictures((16, 16))
    assert (open_session(path)(pictures)["mask"] == torch_rows("class_ids", pictures)).mean() > 0.999
    assert spec.raw_output == "mask_raw"


def test_a_batch_baked_in_is_refused_with_its_size(tmp_path):
    assert "batch is fixed at 2" in refusal(tmp_path, "baked", Task.CLASSIFY)


def test_dropout_that_ignores_eval_mode_is_refused(tmp_path):
    assert "the second time" in refusal(tmp_path, "dropping", Task.CLASSIFY)


def test_statistics_over_the_batch_are_refused(tmp_path):
    assert "others are in its batch" in refusal(tmp_path, "training_statistics", Task.CLASSIFY)


def test_nan_weights_are_refused(tmp_path):
    assert "NaN or infinity for 8 of 8" in refusal(tmp_path, "nan_weights", Task.CLASSIFY)


def test_more_classes_than_a_mask_can_hold_are_refused(tmp_path):
    assert "300 classes" in refusal(tmp_path, "too_many_classes", Task.SEGMENT, output="out")


def test_a_segmentation_map_is_no_classifier(tmp_path):
    assert "one vector for each picture" in refusal(tmp_path, "segmenter", Task.CLASSIFY, output="out")


def test_python_that_decides_on_values_is_refused(tmp_path):
    assert "decides in Python on the values" in refusal(tmp_path, "branching", Task.CLASSIFY)


@pytest.mark.parametrize("name", ["vit_native", "vit_larger"])
def test_position_embeddings_are_resized_once_at_export(tmp_path, name, capfd):
    """PyTorch's tracing exporter fails on these, and prints the graph from C++: stdout is none of its business."""
    path, spec, lines = export(tmp_path, name, Task.EMBED)
    pictures = trial_pictures(spec.preprocess.size)
    assert np.allclose(open_session(path)(pictures)["embedding"], torch_rows(name, pictures), atol=1e-4)
    assert "Resize" not in {node.op_type for node in onnx.load(path).graph.node}
    assert any("torch.export" in line for line in lines)
    found = capfd.readouterr()
    assert (found.out, found.err) == ("", "")


def test_random_weights_depend_on_the_seed_alone(tmp_path):
    torch.manual_seed(99)
    first, spec, _ = export(tmp_path, "classifier", Task.CLASSIFY, weights=RANDOM, seed=3)
    assert spec.weights == "random (seed 3)"
    content = first.read_bytes()
    state = torch.random.get_rng_state()
    again, _, _ = export(tmp_path, "classifier", Task.CLASSIFY, weights=RANDOM, seed=3)
    assert again.read_bytes() == content
    assert torch.equal(torch.random.get_rng_state(), state)
    other, _, _ = export(tmp_path, "classifier", Task.CLASSIFY, weights=RANDOM, seed=4)
    assert other.read_bytes() != content


def test_a_weights_file_fills_the_network_and_a_wrong_one_is_named(tmp_path):
    torch.manual_seed(5)
    net = toys.Net()
    torch.save({"state_dict": net.state_dict()}, tmp_path / "w.pth")
    path, spec, _ = export(tmp_path, "classifier", Task.CLASSIFY, weights=str(tmp_path / "w.pth"))
    pictures = trial_pictures((16, 16))
    found = open_session(path, also="logits")(pictures)["logits"]
    assert np.allclose(found, torch_rows("classifier", pictures, seed=5), atol=1e-5)
    assert spec.weights == "w.pth"
    torch.save(toys.Net(classes=3).state_dict(), tmp_path / "other.pth")
    with pytest.raises(ModelError, match=r"other\.pth do not fit"):
        export(tmp_path, "classifier", Task.CLASSIFY, weights=str(tmp_path / "other.pth"))
    (tmp_path / "text.pth").write_text("hello")
    with pytest.raises(ModelError, match=r"Cannot read weights from .*text\.pth"):
        export(tmp_path, "classifier", Task.CLASSIFY, weights=str(tmp_path / "text.pth"))


def test_bgr_networks_get_blue_first(tmp_path):
    path, _, _ = export(tmp_path, "bgr_mean", Task.EMBED)
    red = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    red[..., 0] = 255
    assert np.allclose(open_session(path)(red)["embedding"], [[0, 0, 1]])


def test_what_is_wrong_with_a_factory_is_said(tmp_path):
    assert "no such checkpoint" in refusal(tmp_path, "failing", Task.CLASSIFY)
    assert "returns str" in refusal(tmp_path, "not_a_module", Task.CLASSIFY)
    assert "no function 'nonesuch'" in refusal(tmp_path, "nonesuch", Task.CLASSIFY)
    assert "--task" in refusal(tmp_path, "classifier", None, UsageError)
    message = refusal(tmp_path, "no_preprocessing", Task.CLASSIFY, UsageError)
    assert "--crop and --mean and --std" in message
    with pytest.raises(ModelError, match="Cannot import 'no_such_package'"):
        export_model("no_such_package:net", tmp_path / "m.onnx", ExportOptions(task=Task.EMBED))


def test_an_exported_file_holds_no_local_paths_and_no_stale_notes(tmp_path):
    path, _, _ = export(tmp_path, "classifier", Task.CLASSIFY)
    assert b"/tests/" not in path.read_bytes()
    model = onnx.load(path)
    assert [entry.key for entry in model.metadata_props] == ["vdali"]
    assert not model.graph.value_info
    assert {node.op_type for node in model.graph.node}.isdisjoint({"Identity", "Constant"})
