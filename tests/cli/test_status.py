"""The command: how it ends, what it prints where, and that nothing a user types gives a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil

import pyarrow.parquet as pq
import pytest
from commands import failed_ids_of, ids_of, record_of, run_vdali
from conftest import gpus
from models import tiny_classifier
from pictures import encoded


def test_done_is_status_0_with_the_summary_on_stderr_and_nothing_on_stdout(tmp_path, model, pictures):
    done = run_vdali("run", pictures, "-m", model, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("finished: 29 rows, 1 failures in ")
    assert "onnxruntime:CPUExecutionProvider" in done.stderr
    assert done.stderr.endswith("out: 29 rows, 1 failures in all\n")
    assert not re.search(r"[\r\x1b]", done.stderr)


def test_json_is_one_document_on_stdout_and_agrees_with_run_json(tmp_path, model, pictures):
    command = ("run", pictures, "-m", model, "-o", tmp_path / "out", "--json")
    first, again = run_vdali(*command), run_vdali(*command)
    assert (first.returncode, again.returncode) == (0, 0)
    document = json.loads(first.stdout)
    assert (document["status"], document["rows"], document["failures"]) == ("finished", 29, 1)
    record = record_of(tmp_path / "out")
    assert record["used"].items() >= document["used"].items()
    assert record["sessions"][0].items() >= document["session"].items()
    assert record["counts"]["failures_by_kind"] == document["session"]["failures_by_kind"]
    assert json.loads(again.stdout)["status"] == "already_finished"
    assert json.loads(again.stdout)["rows"] == 29


USAGE = [
    (["run", "{in}", "-m", "{model}"], "No output folder was given. Add -o OUT."),
    (["run", "{in}", "-m", "{model}", "-o", "{in}/out"], "is inside the INPUT"),
    (
        ["run", "{in}", "-m", "{model}", "-o", "out", "--decoder", "quick"],
        "Unknown decoder 'quick'. Use one of: auto, ",
    ),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--precision", "fp7"], "Unknown precision 'fp7'. Use one of: fp32"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--kind", "zip"], "Unknown kind 'zip'. Use one of: auto, folder"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--shard", "2"], "Shard '2' is not of the form i/n"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--shard", "2/2"], "the last of 2 is 1/2"),
    (
        ["run", "{in}", "-m", "{model}", "-o", "out", "--device", "gpu"],
        "No device 'gpu'. Use auto, cpu, cuda or cuda:N.",
    ),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--micro-batch", "33"], "Raise --batch-size"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--task", "embed"], "are for models given by name"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--normalize"], "are for models given by name"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--id-column", "name"], "no INPUT is a list or a Parquet file"),
    (["run", "{in}", "-m", "{segmenter}", "-o", "out", "--format", "npy"], "Use --format parquet"),
    (["run", "{model}", "-m", "{model}", "-o", "out"], "say what it is with --kind"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--limit", "0"], "Invalid value for '--limit'"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--max-failures", "-1"], "Invalid value for '--max-failures'"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--quick"], "No such option"),
    (["run", "{in}", "-m", "{model}", "-o", "out", "--json", "--telemetry", "jsonl"], "both write to stdout"),
    (["fly"], "No such command 'fly'"),
    (["export", "{model}"], "Missing option '-o'"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--mean", "1,2"], "--mean takes three numbers"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--crop", "big"], "--crop takes N or HxW"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--mode", "bent"], "Unknown mode 'bent'. Use one of: shorter"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--interpolation", "x"], "Unknown interpolation 'x'"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--pad", "top"], "Unknown pad 'top'"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--color-order", "grb"], "Unknown color-order 'grb'"),
]


@pytest.mark.parametrize(("words", "says"), USAGE, ids=[" ".join(words)[-40:] for words, _ in USAGE])
def test_words_that_make_no_sense_are_status_2_and_leave_nothing(
    vdali, tmp_path, model, segmenter, pictures, words, says
):
    names = {"in": pictures, "model": model, "segmenter": segmenter}
    ended = vdali(*[word.format(**names) for word in words])
    assert (ended.status, ended.out) == (2, "")
    assert says in ended.err
    assert os.listdir(tmp_path) == []
    assert not (pictures / "out").exists()


def test_usage_errors_of_a_process_are_status_2_too(model, pictures):
    ended = run_vdali("run", pictures, "-m", model)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "vdali: No output folder was given. Add -o OUT.\n"


def test_an_input_that_is_not_there_is_status_3(tmp_path, model):
    ended = run_vdali("run", tmp_path / "nowhere", "-m", model, "-o", tmp_path / "out")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert re.fullmatch(r"vdali: No INPUT .*nowhere: No such file or directory .* Check the path.*\n", ended.stderr)
    assert not (tmp_path / "out").exists()


def test_inputs_without_an_image_are_status_3_and_say_what_was_seen(vdali, tmp_path, model):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("no image")
    (tmp_path / "texts" / ".b.jpg").write_bytes(b"hidden")
    for inputs, seen in (("empty.txt", "nothing"), ("texts", r"1 .*\.md"), ("texts/*.jpg", "nothing")):
        ended = vdali("run", inputs, "-m", model, "-o", "out")
        assert ended.status == 3
        assert re.search(f"No image in .*seen: .*{seen}.* Check the INPUT", ended.err)
        assert pq.read_table(tmp_path / "out" / "rows").num_rows == 0
        shutil.rmtree(tmp_path / "out")


def test_a_pipe_as_input_is_refused_and_not_waited_for(vdali, tmp_path, model):
    os.mkfifo(tmp_path / "pipe")
    ended = vdali("run", "pipe", "-m", model, "-o", "out")
    assert ended.status == 2
    assert "INPUT pipe is a pipe, socket or device. Save what it gives to a file first." in ended.err


def test_a_device_that_is_not_there_is_status_4_and_nothing_is_written(tmp_path, model, pictures):
    if gpus().count:
        pytest.skip("this machine has a GPU")
    ended = run_vdali("run", pictures, "-m", model, "-o", tmp_path / "out", "--device", "cuda")
    assert (ended.returncode, ended.stdout) == (4, "")
    assert re.fullmatch(r"vdali: No device 'cuda': .*\. Use --device cpu, or run `vdali doctor`\.\n", ended.stderr)
    assert os.listdir(tmp_path) == []


def test_the_output_of_another_run_is_status_6_with_the_difference_named(tmp_path, model, pictures):
    other = tiny_classifier(tmp_path / "other.onnx")
    command = ("run", pictures, "-o", tmp_path / "out", "--limit", 3)
    assert run_vdali(*command, "-m", model).returncode == 0
    ended = run_vdali(*command, "-m", other)
    assert (ended.returncode, ended.stdout) == (6, "")
    assert "belongs to another run, which differs in:" in ended.stderr
    assert "task: embed there, classify now" in ended.stderr
    assert len(ids_of(tmp_path / "out")) == 3


def test_a_folder_of_other_files_is_never_taken_as_output(vdali, tmp_path, model, pictures):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    assert vdali("run", pictures, "-m", model, "-o", "mine").status == 6
    assert vdali("run", pictures, "-m", model, "-o", "file").status == 6
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]


def test_strict_ends_with_status_7_and_keeps_ending_so_until_the_input_is_mended(tmp_path, model, pictures):
    own = tmp_path / "in"
    shutil.copytree(pictures, own)
    command = ("run", own, "-m", model, "-o", tmp_path / "out", "--strict", "--batch-size", 2, "--lanes", 1)
    first = run_vdali(*command)
    assert (first.returncode, first.stdout) == (7, "")
    bad = next(own.glob("0007.*"))
    assert f"1 samples have failed, 0 are allowed; the last: {bad.name}: " in first.stderr
    assert "run the same command with --retry-failures, or raise --max-failures." in first.stderr
    assert failed_ids_of(tmp_path / "out") == [bad.name]
    again = run_vdali(*command)
    assert (again.returncode, "Traceback" in again.stderr) == (7, False)
    bad.write_bytes(encoded(7, "PNG", (20, 20)))
    assert run_vdali(*command, "--retry-failures").returncode == 0
    assert len(ids_of(tmp_path / "out")) == 30
    assert failed_ids_of(tmp_path / "out") == []


def test_more_failures_than_allowed_are_status_7_even_when_the_run_has_finished_before(vdali, model, pictures):
    assert vdali("run", pictures, "-m", model, "-o", "out", "--max-failures", 1).status == 0
    assert vdali("run", pictures, "-m", model, "-o", "out", "--max-failures", 1).status == 0
    assert vdali("run", pictures, "-m", model, "-o", "out", "--strict").status == 7


def test_doctor_prints_one_json_document():
    ended = run_vdali("doctor", "--json")
    assert ended.returncode == 0
    assert isinstance(json.loads(ended.stdout), dict)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("export", "-h"), ("doctor", "-h"), ("--version",)])
def test_help_is_on_stdout_with_status_0(vdali, words):
    ended = vdali(*words)
    assert (ended.status, ended.err) == (0, "")
    assert "vdali" in ended.out


def test_help_names_every_exit_status(vdali):
    said = vdali("run", "--help").out
    for status in ("0 done", "2 usage", "3 no input", "4 device", "5 model", "6 OUT", "7 too many", "130 interrupted"):
        assert status in said
