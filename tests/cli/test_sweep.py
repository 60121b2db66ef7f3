"""vdali sweep and vdali scenario as a user meets them, on a tiny model and a handful of pictures."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from commands import run_vdali, start_vdali, wait_until
from models import mean_colour_model, with_spec
from pictures import write_numbered
from vdali.engine.plans.files import locked
from vdali.engine.spec import Precision

QUICK = ("--max-batch", 2, "--rounds", 1, "--seconds", 0.02, "--lanes", 1, "--device", "cpu")


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """Five pictures and one that is none."""
    folder = tmp_path_factory.mktemp("few") / "in"
    write_numbered(folder, 6, bad=frozenset({4}))
    return folder


def cells_of(path: Path) -> list[dict]:
    try:
        return json.loads(path.read_text())["cells"]
    except FileNotFoundError:
        return []


def test_a_sweep_is_a_plot_a_file_and_a_report(vdali, model, few, tmp_path):
    words = ("sweep", few, "-m", model, "--resolutions", "16,20", *QUICK, "-o", "s.json")
    ended = vdali(*words)
    assert ended.status == 0, ended.err
    assert "fp32, 16x16, turbo\n      1  █" in ended.out
    assert "fp32, 20x20, turbo\n      1  " in ended.out
    assert "takes 16x16 pixels, and a file cannot be given another size" in ended.out
    assert "note: 1 entries of the input were left out" in ended.out
    assert ended.out.splitlines()[-1].startswith("recommended: batch size ")
    document = json.loads((tmp_path / "s.json").read_text())
    assert [cell["batch_size"] for cell in document["cells"]] == [1, 2, 1]
    assert document["series"][0]["system"].startswith("vdali, onnxruntime:CPUExecutionProvider, fp32, decoder turbo")
    assert vdali("report", "s.json", "-o", "s.html").status == 0
    page = (tmp_path / "s.html").read_text()
    assert "Throughput over batch size" in page
    assert "recommended: batch size" in page
    again = vdali(*words, "--json")
    assert "s.json has 3 points already: they are not measured again" in again.err
    assert json.loads(again.out)["cells"] == document["cells"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.html", "s.json"]


def test_a_sweep_that_was_killed_goes_on_where_it_was(model, few, tmp_path):
    output = tmp_path / "s.json"
    words = ("sweep", few, "-m", model, "--decoders", "turbo,pillow", *QUICK, "--max-batch", 1, "-o", output)
    process = start_vdali(*words)
    wait_until(lambda: cells_of(output), process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stderr.close()
    kept = cells_of(output)
    assert len(kept) == 1
    ended = run_vdali(*words)
    assert ended.returncode == 0, ended.stderr
    assert "has 1 points already" in ended.stderr
    whole = json.loads(output.read_text())
    assert whole["finished"]
    unmarked = [{key: cell[key] for key in kept[0]} for cell in whole["cells"]]
    assert unmarked[:1] == kept
    found = [(cell["decoder"], cell["batch_size"]) for cell in whole["cells"]]
    assert found == [("turbo", 1), ("pillow", 1)]
    other = run_vdali(*words, "--threads", 2)
    assert other.returncode == 6
    assert "threads 1, now 2" in other.stderr


def test_two_sweeps_do_not_share_a_file(vdali, model, few, tmp_path):
    with locked(tmp_path / "s.json.lock") as held:
        assert held
        ended = vdali("sweep", few, "-m", model, *QUICK, "-o", "s.json")
    assert ended.status == 6
    assert "Another process sweeps into s.json" in ended.err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--precisions", "fp7"), 2, "Unknown precision 'fp7'"),
        (("--decoders", "magic"), 2, "Unknown decoder 'magic'"),
        (("--resolutions", "big"), 2, "No resolution 'big'"),
        (("--precisions", "fp32,fp32"), 2, "name one twice"),
        (("-m", "none.onnx"), 5, "There is no model file none.onnx"),
        (("--device", "tpu"), 2, "No device 'tpu'"),
        (("--weights", "random"), 2, "are for models given by name"),
        (("nowhere",), 3, "nowhere"),
    ],
)
def test_words_that_make_no_sweep_end_with_a_message(vdali, model, words, status, message):
    ended = vdali("sweep", "-m", model, *QUICK, "-o", "s.json", *words)
    assert ended.status == status
    assert message in ended.err
    assert ended.out == ""


def test_a_scenario_ends_with_its_one_declared_result(vdali, few, tmp_path):
    model = mean_colour_model(tmp_path / "mean.onnx", (16, 16))
    ended = vdali("scenario", "offline", few, "-m", model, "--seconds", 0.2, "--device", "cpu", "-o", "o.json")
    assert ended.status == 0, ended.err
    assert ended.out.startswith("offline: ")
    assert ended.out.endswith(" samples/s\n")
    assert ended.out.count("\n") == 1
    assert "MLPerf-style, not a submission" in ended.err
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["verdict"] == ended.out.strip()
    assert document["pictures"] == 5
    assert vdali("report", "o.json", "-o", "o.md").status == 0
    assert "MLPerf-style, not a submission" in (tmp_path / "o.md").read_text()
    assert vdali("scenario", "multi-stream", few, "-m", model).status == 2
    assert "are for models given by name" in vdali("scenario", "offline", few, "-m", model, "--task", "embed").err
    other = with_spec(mean_colour_model(tmp_path / "half.onnx", (16, 16)), precision=Precision.FP16)
    refused = vdali("scenario", "offline", few, "-m", other)
    assert refused.status == 5
    assert "is fp16, but --precision fp32 was asked for. Use --precision fp16." in refused.err
