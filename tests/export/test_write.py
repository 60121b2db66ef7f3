from __future__ import annotations

import numpy as np
import onnx
import pytest
from vdali.engine.backends.content import external_locations, model_content
from vdali.engine.errors import AgreementError, VdaliError
from vdali.engine.spec import Task
from vdali.export.model import export_model
from vdali.export.options import ExportOptions
from vdali.export.session import open_session
from vdali.export.verify import trial_pictures
from vdali.export.write import drop_drafts, write_model

from tests.export.plain import logits_of, network

OPTIONS = {"task": Task.CLASSIFY, "mean": (0.5,) * 3, "std": (0.2,) * 3}


def plain_model(tmp_path, classes=300):
    return onnx.load(network(tmp_path / "plain.onnx", classes=classes))


def accept(draft):
    assert draft.is_file()


def refuse(draft):
    raise AgreementError("no")


def test_a_refused_draft_leaves_nothing_behind(tmp_path):
    model = plain_model(tmp_path)
    out = tmp_path / "out"
    for data_over in (0, 1 << 30):
        with pytest.raises(AgreementError):
            write_model(model, out / "m.onnx", check=refuse, data_over=data_over)
        assert list(out.iterdir()) == []


def test_a_refused_draft_leaves_the_earlier_file_as_it_was(tmp_path):
    write_model(plain_model(tmp_path), tmp_path / "out" / "m.onnx", check=accept, data_over=0)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(AgreementError):
        write_model(plain_model(tmp_path, classes=400), tmp_path / "out" / "m.onnx", check=refuse, data_over=0)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_weights_beside_the_file_are_replaced_with_it(tmp_path):
    out = tmp_path / "out" / "m.onnx"
    write_model(plain_model(tmp_path), out, check=accept, data_over=0)
    (first,) = external_locations(out)
    assert first.startswith("m.onnx.")
    assert (out.parent / first).stat().st_mode == out.stat().st_mode
    content = model_content(out)
    (out.parent / "m.onnx.other.txt").write_text("not ours")
    write_model(plain_model(tmp_path, classes=400), out, check=accept, data_over=0)
    (second,) = external_locations(out)
    assert second != first
    assert model_content(out) != content
    assert {path.name for path in out.parent.iterdir()} == {"m.onnx", second, "m.onnx.other.txt"}
    write_model(plain_model(tmp_path, classes=300), out, check=accept, data_over=0)
    assert model_content(out) == content
    write_model(plain_model(tmp_path), out, check=accept, data_over=1 << 30)
    assert {path.name for path in out.parent.iterdir()} == {"m.onnx", "m.onnx.other.txt"}


def test_an_export_with_its_weights_beside_it_gives_the_same(tmp_path):
    source = network(tmp_path / "plain.onnx", classes=300)
    out = tmp_path / "big" / "m.onnx"
    spec = export_model(str(source), out, ExportOptions(**OPTIONS, data_over=100))
    assert len(external_locations(out)) == 1
    pictures = trial_pictures((8, 8))
    found = open_session(out, also=spec.raw_output)(pictures)["logits"]
    assert np.allclose(found, logits_of(pictures, *(OPTIONS[k] for k in ("mean", "std")), classes=300), atol=1e-3)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VdaliError, match=r"Cannot write .*file/m\.onnx"):
        write_model(plain_model(tmp_path), tmp_path / "file" / "m.onnx", check=accept, data_over=0)


def test_a_source_is_never_overwritten(tmp_path):
    source = network(tmp_path / "plain.onnx")
    content = source.read_bytes()
    with pytest.raises(VdaliError, match="is the model itself"):
        export_model(str(source), tmp_path / "." / "plain.onnx", ExportOptions(**OPTIONS))
    assert source.read_bytes() == content


def test_an_output_that_is_no_onnx_name_is_refused(tmp_path):
    with pytest.raises(VdaliError, match=r"must end in \.onnx"):
        export_model(str(network(tmp_path / "plain.onnx")), tmp_path / "out.plan", ExportOptions(**OPTIONS))


def test_drafts_of_killed_processes_are_dropped_and_nothing_else(tmp_path):
    write_model(plain_model(tmp_path), tmp_path / "m.onnx", check=accept, data_over=0)
    before = {file.name for file in tmp_path.iterdir()}
    draft = tmp_path / ".m.onnx.x7gh"
    draft.mkdir()
    (draft / "m.onnx").write_bytes(b"half")
    (tmp_path / ".mm.onnx.x7gh").mkdir()
    drop_drafts(tmp_path / "m.onnx")
    assert {file.name for file in tmp_path.iterdir()} == {*before, ".mm.onnx.x7gh"}
