from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
from vdali.engine.errors import ModelError
from vdali.engine.spec import Precision, Task
from vdali.export import model as model_module
from vdali.export import store
from vdali.export.store import resolve_model

from tests.models import tiny_classifier

NAME = "efficientnet_lite0"


@pytest.fixture
def exports(monkeypatch):
    """What was exported, in the place of real exports: a tiny classifier each time."""
    made = []

    def export_tiny(model, out, options, report):
        made.append((model, options.task, options.normalize))
        tiny_classifier(out)

    monkeypatch.setattr(model_module, "export_model", export_tiny)
    return made


def resolve(folder, model=NAME, precision=Precision.FP32, **choices):
    lines = []
    path = resolve_model(model, precision=precision, cache_dir=folder, report=lines.append, **choices)
    return path, lines


def test_a_known_name_is_exported_once(tmp_path, exports):
    path, lines = resolve(tmp_path)
    assert path.parent == tmp_path / "models"
    assert path.name.startswith("efficientnet_lite0-")
    assert "First use" in lines[0]
    again, lines = resolve(tmp_path)
    assert again == path
    assert lines == []
    assert len(exports) == 1


def test_task_and_normalisation_make_another_file(tmp_path, exports):
    paths = {
        resolve(tmp_path)[0].name,
        resolve(tmp_path, task=Task.EMBED)[0].name,
        resolve(tmp_path, task=Task.EMBED, normalize=True)[0].name,
        resolve(tmp_path, "timm/resnet18.a1_in1k")[0].name,
    }
    assert len(paths) == 4
    assert any(name.startswith("efficientnet_lite0-embed-normalized-") for name in paths)
    assert any(name.startswith("timm-resnet18.a1_in1k-") for name in paths)
    assert exports[2] == (NAME, Task.EMBED, True)


def test_a_damaged_file_in_the_cache_is_made_again(tmp_path, exports):
    path, _ = resolve(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    resolve(tmp_path)
    assert len(exports) == 2
    path.write_text("")
    resolve(tmp_path)
    assert len(exports) == 3


def test_another_version_of_the_graph_is_another_file(tmp_path, exports, monkeypatch):
    before, _ = resolve(tmp_path)
    monkeypatch.setattr(store, "GRAPH_VERSION", store.GRAPH_VERSION + 1)
    assert resolve(tmp_path)[0] != before


def test_vdali_cache_says_where(tmp_path, exports, monkeypatch):
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "here"))
    path = resolve_model(NAME, precision=Precision.FP32)
    assert path.is_relative_to(tmp_path / "here" / "models")


def test_two_at_once_export_once(tmp_path, exports, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    quick = model_module.export_model

    def slow(*arguments):
        started.set()
        assert go_on.wait(20)
        quick(*arguments)

    monkeypatch.setattr(model_module, "export_model", slow)
    found, said = [], []

    def work():
        found.append(resolve_model(NAME, precision=Precision.FP32, cache_dir=tmp_path, report=said.append))

    first, second = threading.Thread(target=work), threading.Thread(target=work)
    first.start()
    assert started.wait(20)
    second.start()
    go_on.set()
    first.join(20)
    second.join(20)
    assert len(exports) == 1
    assert found[0] == found[1]


def test_a_cache_that_cannot_be_written_costs_a_warning_and_not_the_run(tmp_path, exports):
    (tmp_path / "models").write_text("a file where the folder should be")
    path, lines = resolve(tmp_path)
    assert path.is_file()
    assert "cannot be written" in lines[0]
    assert "VDALI_CACHE" in lines[0]


def test_a_file_is_taken_as_it_is(tmp_path, exports):
    path = tiny_classifier(tmp_path / "mine.onnx")
    assert resolve(tmp_path, str(path))[0] == path
    assert exports == []
    with pytest.raises(ModelError, match=r"no model file .*gone\.onnx.*efficientnet_lite0"):
        resolve(tmp_path, str(tmp_path / "gone.onnx"))


@pytest.mark.parametrize("name", ["resnet50", "timm/", "keras/resnet50", "https://host/m.bin"])
def test_an_unknown_name_lists_what_is_possible(tmp_path, exports, name):
    with pytest.raises(ModelError, match=r"efficientnet_lite0, timm/NAME or torchvision/NAME"):
        resolve(tmp_path, name)
    assert not (tmp_path / "models").exists()


def test_a_factory_is_to_be_exported_first(tmp_path, exports):
    with pytest.raises(ModelError, match="vdali export package:make"):
        resolve(tmp_path, "package:make")


def test_a_cached_model_is_found_without_pytorch_and_no_module_loads_it(tmp_path, exports):
    path, _ = resolve(tmp_path)
    program = f"""
import json, sys
from pathlib import Path
from vdali.engine.spec import Precision
from vdali.export.store import resolve_model
import vdali.export, vdali.export.model, vdali.export.options, vdali.export.sources, vdali.export.torch_model
import vdali.export.timm_models, vdali.export.torchvision_models, vdali.export.factory_models, vdali.export.demo_model
path = resolve_model("{NAME}", precision=Precision.FP32, cache_dir=Path({str(tmp_path)!r}))
heavy = [name for name in ("torch", "timm", "torchvision", "onnxscript", "onnxruntime") if name in sys.modules]
print(json.dumps([str(path), heavy]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [str(path), []]
