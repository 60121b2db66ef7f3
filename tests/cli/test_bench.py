"""The commands that measure: systems side by side, and what holds a run back."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from models import mean_colour_model
from pictures import encoded, write_numbered
from rigged import heavy_model, photo
from vdali.benchmarks import compare
from vdali.benchmarks.bench_file import read_bench
from vdali.benchmarks.comparison import ComparisonReport, Status
from vdali.engine.gpu_probe import GpuProbe

READ_S = 0.12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("tiny") / "mean.onnx", (8, 8))


@pytest.fixture
def slow_server() -> Iterator[str]:
    """Address of a server that takes its time for each picture."""
    picture = encoded(1, "JPEG", (40, 30))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(READ_S)
            self.send_response(200)
            self.send_header("Content-Length", str(len(picture)))
            self.end_headers()
            self.wfile.write(picture)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_systems_side_by_side_become_a_table_a_file_and_a_report(vdali, tmp_path, tiny, pictures):
    """Without PyTorch, which test_compare brings: two precisions, one that cannot be had, a system that is absent."""
    words = ("bench", pictures, "-m", tiny, "--against", "ray", "-p", "fp32,fp16,int8", "--rounds", 2)
    ended = vdali(*words, "--device", "cpu", "--batch-size", 8, "--images", 20, "--json", "found.json")
    assert ended.status == 0, ended.err
    assert "1 entries are left out; the first, 0007" in ended.err
    assert re.search(r"^vdali +\d+\.\d \(.*reference", ended.out, re.MULTILINE)
    assert re.search(r"vdali does \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\) times the images/s of vdali:fp16", ended.out)
    assert "vdali:int8 failed: " in ended.out
    document = read_bench(tmp_path / "found.json")
    report = ComparisonReport.from_json(document["comparisons"][0])
    states = {row.system: row.status for row in report.rows}
    assert states.pop("ray") in (Status.ABSENT, Status.FAILED)
    assert states == {"vdali": Status.OK, "vdali:fp16": Status.OK, "vdali:int8": Status.FAILED}
    assert (report.images, report.rounds, report.batch_size) == (19, 2, 8)
    assert report.rows[1].lowest_cosine > 0.999
    assert vdali("report", "found.json", "-o", "report.md").status == 0
    assert "vdali:fp16" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--against", "tensorflow"], 2, "Unknown system 'tensorflow'. Use one or more of: torch, torch-tuned"),
        (["--against", "torch,,ray"], 2, "'torch,,ray' is no list of words with commas between"),
        (["--precision", "fp7"], 2, "Unknown precision 'fp7'"),
        (["--device", "tpu", "--against", ""], 2, "No device 'tpu'"),
        (["--rounds", "0"], 2, "Invalid value for '--rounds'"),
        (["--model", "resnet"], 5, "Unknown model 'resnet'"),
    ],
)
def test_a_bench_that_makes_no_sense_ends_with_a_plain_message(vdali, tiny, pictures, words, status, says):
    ended = vdali("bench", pictures, "-m", tiny, *words)
    assert (ended.status, ended.out) == (status, "")
    assert says in ended.err


def test_a_bench_or_a_diagnosis_of_nothing_usable_is_status_3(vdali, tmp_path, tiny):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jpg").write_bytes(b"<html>")
    for command in (("bench", "bad", "--against", ""), ("diagnose", "bad", "--seconds", 0.1)):
        ended = vdali(*command, "-m", tiny)
        assert (ended.status, ended.out) == (3, "")
        assert "bad" in ended.err


def test_a_slow_source_is_diagnosed_and_more_lanes_are_advised(vdali, tmp_path, tiny, slow_server):
    (tmp_path / "list.txt").write_text("".join(f"{slow_server}/{number}.jpg\n" for number in range(2000)))
    words = ("diagnose", "list.txt", "-m", tiny, "--lanes", 1, "--micro-batch", 1, "--seconds", 0.5, "--images", 8)
    found = json.loads(vdali(*words, "--json").out)
    assert (found["kind"], found["resource"], found["stage"]) == ("diagnosis", "disk or network", "read")
    assert found["verdict"].startswith("input-bound: a read waits 1")
    assert list(found["advice"][0]["options"]) == ["lanes"]
    assert found["advice"][0]["predicted_gain"] > 2


def test_heavy_decoding_is_diagnosed_in_a_sentence_with_what_to_change_first(vdali, tmp_path, tiny):
    (tmp_path / "in").mkdir()
    for number in range(8):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(photo(1600, 1200))
    words = ("diagnose", "in", "-m", tiny, "--decode", "exact", "--micro-batch", 2, "--seconds", 0.5)
    ended = vdali(*words, "--scratch", tmp_path)
    verdict = ended.out.splitlines()[0]
    assert re.match(
        r"input-bound: decode takes (9\d|100) %.* with --decode fast.*, expect about [\d,]+ images/s", verdict
    )
    assert re.search(r"^ +--decode fast +[\d,.]+ images/s +\d\.\d\dx$", ended.out, re.MULTILINE)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_heavy_model_is_diagnosed_and_the_report_shows_it(vdali, tmp_path):
    heavy = heavy_model(tmp_path / "heavy.onnx")
    write_numbered(tmp_path / "in", 40, kinds=("PNG",))
    ended = vdali("diagnose", "in", "-m", heavy, "--micro-batch", 2, "--seconds", 0.4, "--json")
    found = json.loads(ended.out)
    assert (found["resource"], found["stage"]) == ("CPU", "engine")
    assert found["verdict"].startswith("engine-bound: the engine takes ")
    (tmp_path / "found.json").write_text(ended.out)
    assert vdali("report", "found.json", "-o", "report.md").status == 0
    assert found["verdict"][:40] in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("bench", "--json", "taken"), 6, "Cannot write taken"),
        (("bench", "--device", "cuda"), 4, "No device 'cuda'"),
        (("sweep", "-o", "s.json", "--device", "cuda:1"), 4, "No device 'cuda:1'"),
        (("sweep", "-o", "taken/../file/s.json"), 6, "Cannot write"),
        (("sweep", "-o", "s.json", "--seconds", "nan"), 2, "nan is no length of time"),
        (("scenario", "offline", "--device", "cuda"), 4, "No device 'cuda'"),
        (("scenario", "server", "-o", "file/s.json"), 6, "Cannot write"),
        (("scenario", "server", "--bound-ms", "inf"), 2, "inf is no length of time"),
        (("diagnose", "--seconds", "inf"), 2, "inf is no length of time"),
    ],
)
def test_what_cannot_come_to_an_end_is_told_before_it_starts(
    vdali, tmp_path, tiny, pictures, monkeypatch, words, status, message
):
    monkeypatch.setattr(compare, "probe_gpu", lambda: GpuProbe(reason="no NVIDIA driver"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    ended = vdali(*words, pictures, "-m", tiny)
    assert ended.status == status
    assert message in ended.err
    assert "starts and warms up" not in ended.err
    assert ended.out == ""
