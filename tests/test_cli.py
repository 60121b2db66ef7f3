"""The command: what it prints where, how it ends, and that nothing a user types gives a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import COMMAND, failed_ids_of, ids_of, record_of, run_vdali
from conftest import gpus
from models import mean_colour_model, red_segmenter, tiny_classifier, with_spec
from onnx import TensorProto, helper
from pictures import encoded, write_numbered
from vdali.cli import main
from vdali.engine.sources.ids import bytes_from_id
from vdali.engine.spec import Precision

BAD = 7


class Ended(NamedTuple):
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("model") / "mean.onnx", size=(16, 16))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """30 numbered pictures; number 7 is none."""
    folder = tmp_path_factory.mktemp("pictures") / "in"
    write_numbered(folder, 30, bad=frozenset({BAD}))
    return folder


@pytest.fixture
def vdali(tmp_path, monkeypatch, capfd):
    """The command in this process, in an empty folder; all that reaches stdout and stderr is seen."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Ended:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words], prog_name="vdali")
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Ended(int(ended.value.code or 0), out, err)

    return run


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
    (["fly"], "No such command 'fly'"),
    (["export", "{model}"], "Missing option '-o'"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--mean", "1,2"], "--mean takes three numbers"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--crop", "big"], "--crop takes N or HxW"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--mode", "bent"], "Unknown mode 'bent'. Use one of: shorter"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--interpolation", "x"], "Unknown interpolation 'x'"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--pad", "top"], "Unknown pad 'top'"),
    (["export", "efficientnet_lite0", "-o", "x.onnx", "--color-order", "grb"], "Unknown color-order 'grb'"),
]


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory) -> Path:
    return red_segmenter(tmp_path_factory.mktemp("model") / "seg.onnx")


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


def test_a_plain_onnx_file_is_status_5_and_the_message_is_the_export_command(tmp_path, model, pictures):
    plain = onnx.load(model)
    del plain.metadata_props[:]
    onnx.save(plain, tmp_path / "plain.onnx")
    ended = run_vdali("run", pictures, "-m", tmp_path / "plain.onnx", "-o", tmp_path / "out")
    assert (ended.returncode, ended.stdout) == (5, "")
    assert f"Export it: vdali export {tmp_path}/plain.onnx --task classify|embed|segment" in ended.stderr
    assert "images" in ended.stderr
    assert os.listdir(tmp_path) == ["plain.onnx"]


def fixed_batch(path: Path, model: Path) -> Path:
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(proto, path)
    return path


def float_input(path: Path, model: Path) -> Path:
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    onnx.save(proto, path)
    return path


def without_output(path: Path, model: Path) -> Path:
    proto = onnx.load(model)
    proto.graph.output[0].name = "mean"
    proto.graph.node.append(helper.make_node("Identity", ["embedding"], ["mean"]))
    onnx.save(proto, path)
    return path


def cut(path: Path, model: Path) -> Path:
    path.write_bytes(model.read_bytes()[:300])
    return path


def text(path: Path, model: Path) -> Path:
    path.write_text("weights go here\n")
    return path


def empty(path: Path, model: Path) -> Path:
    path.touch()
    return path


def missing(path: Path, model: Path) -> Path:
    return path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (fixed_batch, "the batch is fixed at 4"),
        (float_input, "promises images: uint8"),
        (without_output, "lacks the outputs ['embedding']"),
        (cut, "cannot load"),
        (text, "cannot load"),
        (empty, "cannot load"),
        (missing, "There is no model file"),
    ],
)
def test_a_model_that_cannot_be_used_is_status_5(vdali, tmp_path, model, pictures, make, says):
    ended = vdali("run", pictures, "-m", make(tmp_path / "x.onnx", model), "-o", "out")
    assert (ended.status, ended.out) == (5, "")
    assert ended.err.startswith("vdali: ")
    assert says in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-m", "resnet"), "Unknown model 'resnet'. Give an ONNX file"),
        (("-m", "package.module:factory"), "To use a factory, export it first"),
    ],
)
def test_a_model_name_that_is_not_known_is_status_5(vdali, pictures, words, says):
    ended = vdali("run", pictures, *words, "-o", "out")
    assert ended.status == 5
    assert says in ended.err


def test_a_file_at_another_precision_is_status_5(vdali, tmp_path, model, pictures):
    shutil.copy(model, tmp_path / "half.onnx")
    with_spec(tmp_path / "half.onnx", precision=Precision.FP16)
    ended = vdali("run", pictures, "-m", "half.onnx", "-p", "fp32", "-o", "out")
    assert ended.status == 5
    assert "is fp16, but --precision fp32 was asked for. Use --precision fp16" in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("package.nowhere:factory", "--task", "embed"), "package.nowhere"),
        (("nowhere.onnx", "--task", "embed", "--resize", "8", "--crop", "8"), "nowhere.onnx"),
        (("resnet",), "Unknown model 'resnet'"),
    ],
)
def test_exports_that_cannot_be_end_with_a_message(vdali, tmp_path, words, says):
    ended = vdali("export", *words, "-o", "x.onnx")
    assert ended.status in (4, 5)
    assert says in ended.err
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
    bad = next(own.glob(f"{BAD:04d}.*"))
    assert f"1 samples have failed, 0 are allowed; the last: {bad.name}: " in first.stderr
    assert "run the same command with --retry-failures, or raise --max-failures." in first.stderr
    assert failed_ids_of(tmp_path / "out") == [bad.name]
    again = run_vdali(*command)
    assert (again.returncode, "Traceback" in again.stderr) == (7, False)
    bad.write_bytes(encoded(BAD, "PNG", (20, 20)))
    assert run_vdali(*command, "--retry-failures").returncode == 0
    assert len(ids_of(tmp_path / "out")) == 30
    assert failed_ids_of(tmp_path / "out") == []


def test_more_failures_than_allowed_are_status_7_even_when_the_run_has_finished_before(vdali, model, pictures):
    assert vdali("run", pictures, "-m", model, "-o", "out", "--max-failures", 1).status == 0
    assert vdali("run", pictures, "-m", model, "-o", "out", "--max-failures", 1).status == 0
    assert vdali("run", pictures, "-m", model, "-o", "out", "--strict").status == 7


def test_limit_and_shard_choose_and_say_so(vdali, tmp_path, model, pictures):
    assert "4 rows" in vdali("run", pictures, "-m", model, "-o", "few", "--limit", 4).err
    assert len(ids_of(tmp_path / "few")) == 4
    seen = []
    for shard in ("0/3", "1/3", "2/3"):
        out = f"out-{shard[0]}"
        document = json.loads(vdali("run", pictures, "-m", model, "-o", out, "--shard", shard, "--json").out)
        assert document["session"]["source"].endswith(f"shard {shard}")
        seen += [*ids_of(tmp_path / out), *failed_ids_of(tmp_path / out)]
    assert sorted(seen) == sorted(os.listdir(pictures))


def test_an_empty_shard_is_no_error(vdali, tmp_path, model, pictures):
    (tmp_path / "in").mkdir()
    shutil.copy(pictures / "0000.jpg", tmp_path / "in")
    statuses = [vdali("run", "in", "-m", model, "-o", f"out-{i}", "--shard", f"{i}/4").status for i in range(4)]
    assert statuses == [0] * 4
    assert sum(len(ids_of(tmp_path / f"out-{i}")) for i in range(4)) == 1


def test_npy_holds_the_same_vectors_as_parquet(vdali, tmp_path, model, pictures):
    assert vdali("run", pictures, "-m", model, "-o", "a").status == 0
    assert vdali("run", pictures, "-m", model, "-o", "b", "--format", "npy", "--part-rows", 10).status == 0
    table = pq.read_table(tmp_path / "a" / "rows")
    files = sorted((tmp_path / "b" / "rows").glob("*.embedding.npy"))
    ids = [pq.read_table(file.with_name(f"{file.name[:10]}.ids.parquet"))["id"].to_pylist() for file in files]
    assert len(files) > 1
    assert np.array_equal(np.concatenate([np.load(file) for file in files]), np.array(table["embedding"].to_pylist()))
    assert [name for part in ids for name in part] == table["id"].to_pylist()


def test_lists_are_read_with_the_columns_and_root_that_are_named(vdali, tmp_path, model, pictures):
    (tmp_path / "list.csv").write_text("where,key\n0000.jpg,a\n0001.png,b\n")
    words = ("run", "list.csv", "-m", model, "-o", "out", "--root", pictures, "--path-column", "where")
    assert vdali(*words, "--id-column", "key").status == 0
    assert ids_of(tmp_path / "out") == ["a", "b"]
    for other in (words, (*words[:6], "--path-column", "where", "--id-column", "key")):
        ended = vdali(*other)
        assert ended.status == 6
        assert "reading: " in ended.err


def test_a_list_under_any_name_is_read_when_its_kind_is_told(vdali, tmp_path, model, pictures):
    (tmp_path / "names").write_text(f"{pictures}/0000.jpg\n{pictures}/0001.png\n")
    assert vdali("run", "names", "-m", model, "-o", "out").status == 2
    assert vdali("run", "names", "--kind", "list", "-m", model, "-o", "out").status == 0
    assert len(ids_of(tmp_path / "out")) == 2


def test_parquet_with_images_is_read(vdali, tmp_path, model, pictures):
    names = sorted(os.listdir(pictures))[:5]
    table = pa.table({"name": names, "image": [(pictures / name).read_bytes() for name in names]})
    pq.write_table(table, tmp_path / "images.parquet")
    assert vdali("run", "images.parquet", "--id-column", "name", "-m", model, "-o", "out").status == 0
    assert ids_of(tmp_path / "out") == names


def test_names_of_any_bytes_come_back_from_their_ids(tmp_path, model):
    folder = os.fsencode(tmp_path / "in")
    os.mkdir(folder)
    names = [b"new\nline.png", "smile \N{GRINNING FACE}.png".encode(), b"\xff\xfe.png", b"back\\slash.png", b"-o.png"]
    names += [b"a::b.png", b"\x1b[31m.png", b" .png", b"%41{}.png"]
    for name in names:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(encoded(3, "PNG", (9, 9)))
    with open(os.path.join(folder, b"bad\xff.png"), "wb") as file:
        file.write(b"<html>")
    out = tmp_path / "out"
    done = run_vdali(
        "run", tmp_path / "in", "-m", model, "-o", out, "--max-failures", 1, env=os.environ | {"LC_ALL": "C"}
    )
    assert done.returncode == 0, done.stderr
    assert sorted(bytes_from_id(sample_id) for sample_id in ids_of(out)) == sorted(names)
    assert [bytes_from_id(sample_id) for sample_id in failed_ids_of(out)] == [b"bad\xff.png"]


def test_an_input_folder_of_any_name_is_read_and_an_output_folder_must_be_utf_8(tmp_path, model):
    folder = os.fsencode(tmp_path) + b"/in\xff"
    os.mkdir(folder)
    with open(folder + b"/a.png", "wb") as file:
        file.write(encoded(3, "PNG", (9, 9)))
    done = run_vdali("run", folder, "-m", model, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["session"]["source"].endswith("in\\xff")
    refused = run_vdali("run", folder, "-m", model, "-o", os.fsencode(tmp_path) + b"/out\xff")
    assert refused.returncode == 2
    assert "not UTF-8" in refused.stderr
    assert sorted(os.listdir(os.fsencode(tmp_path))) == [b"in\xff", b"out"]


def buffered() -> dict[str, str]:
    """The environment without the switch that hides what is still to be flushed when Python ends."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_a_reader_that_goes_away_ends_the_command_without_a_word(tmp_path, model, pictures):
    command = [*COMMAND, "run", str(pictures), "-m", str(model), "-o", str(tmp_path / "out"), "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered()
    ) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 1
    assert said.endswith("out: 29 rows, 1 failures in all\n")
    assert record_of(tmp_path / "out")["status"] == "finished"


def test_a_full_stdout_is_status_1_with_a_message(tmp_path, model, pictures):
    with open("/dev/full", "w") as full:
        ended = run_vdali(
            "run", pictures, "-m", model, "-o", tmp_path / "out", "--json",
            capture_output=False, stdout=full, stderr=subprocess.PIPE, env=buffered(),
        )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("vdali: [Errno 28] No space left on device. ")
    assert "Traceback" not in ended.stderr


def test_closed_stdout_and_stderr_do_not_stop_a_run(tmp_path, model, pictures):
    words = [*COMMAND, "run", str(pictures), "-m", str(model), "-o", str(tmp_path / "out")]
    ended = subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *words], check=False)
    assert ended.returncode == 0
    assert len(ids_of(tmp_path / "out")) == 29


def test_an_output_that_cannot_be_made_is_status_1_with_a_message(vdali, model, pictures):
    ended = vdali("run", pictures, "-m", model, "-o", "/proc/out")
    assert ended.status == 1
    assert "Cannot write /proc/out: " in ended.err
    assert "Make sure that it can be written" in ended.err


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
