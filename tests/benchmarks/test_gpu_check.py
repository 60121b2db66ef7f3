"""`make gpu-check` where there is no GPU, and its reporting with parts that end in every way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from vdali.benchmarks.gpu_check import __main__ as command
from vdali.benchmarks.gpu_check import part_tests
from vdali.benchmarks.gpu_check.isolate import PartReport, run_part
from vdali.benchmarks.gpu_check.parts import PARTS, TOTAL_LIMIT_S, Part
from vdali.benchmarks.gpu_check.record import (
    Check,
    CheckFailedError,
    Found,
    MissingError,
    RefusedError,
    Result,
    Status,
    read_results,
    run_checks,
    worst,
)
from vdali.benchmarks.gpu_check.table import lines_of
from vdali.engine.errors import MissingExtraError
from vdali.engine.gpu_probe import probe_gpu

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "benchmarks" / "gpu_check" / "run.py"

STUB = """
#include <stdlib.h>
int cuInit(unsigned flags) { return atoi(getenv("STUB_INIT")); }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = atoi(getenv("STUB_COUNT")); return 0; }
"""


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, timeout=60, check=False
    )


@pytest.fixture
def no_gpu() -> None:
    if probe_gpu().count:
        pytest.skip("this machine has a GPU")


@pytest.mark.parametrize(
    "words",
    [
        (sys.executable, "-m", "vdali.benchmarks.gpu_check"),
        (sys.executable, str(ENTRY), "--part", "torch"),
        (sys.executable, "-I", "-S", str(ENTRY)),  # as on a machine where nothing is installed
    ],
    ids=["module", "script", "bare interpreter"],
)
@pytest.mark.parametrize("required", ["", "1"])
def test_without_a_gpu_it_says_so_in_one_line_and_ends_with_status_4(no_gpu, words, required):
    done = run(*words, VDALI_REQUIRE_GPU=required)
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith("No GPU to check: there is no NVIDIA driver here")
    assert done.stderr.count("\n") == 1


def test_make_gpu_check_ends_non_zero_before_it_installs_anything(no_gpu):
    done = run("make", "gpu-check", "BIN=/there/is/nothing")
    assert done.returncode != 0
    assert "No GPU to check" in done.stderr
    assert "/there/is/nothing" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def stub(tmp_path) -> Path:
    """Folder of a driver that knows as many GPUs as it is told, and can do nothing else."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    (tmp_path / "stub.c").write_text(STUB)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", str(tmp_path / "stub.c"), "-o", str(tmp_path / "libcuda.so.1")], check=True
    )
    return tmp_path


@pytest.mark.parametrize(
    ("init", "count", "hidden", "words"),
    [
        ("100", "0", None, "cuInit gives status 100. See what nvidia-smi says"),
        ("0", "0", None, "the driver counts 0 GPUs"),
        ("0", "0", "-1", "with CUDA_VISIBLE_DEVICES='-1'. Unset or correct that variable."),
        ("0", "2", None, ""),
    ],
)
def test_a_driver_is_asked_for_its_gpus(stub, init, count, hidden, words):
    environment = {"LD_LIBRARY_PATH": str(stub), "STUB_INIT": init, "STUB_COUNT": count}
    if hidden is not None:
        environment["CUDA_VISIBLE_DEVICES"] = hidden
    done = run(sys.executable, str(ENTRY.with_name("driver.py")), **environment)
    assert done.returncode == (4 if words else 0)
    assert words in done.stderr
    assert bool(done.stderr) == bool(words)


def test_a_gpu_that_the_driver_knows_and_nobody_can_use_is_said_before_any_part_runs(no_gpu, stub):
    done = run(sys.executable, str(ENTRY), LD_LIBRARY_PATH=str(stub), STUB_INIT="0", STUB_COUNT="1")
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith("The driver knows a GPU, but it cannot be used: ")
    assert "CUDA: " in done.stderr
    assert "Traceback" not in done.stderr


def failing(error: Exception):
    def work() -> Found:
        raise error

    return work


def test_each_check_ends_in_its_own_way_and_keeps_no_other_from_running(tmp_path):
    checks = [
        Check("good", lambda: Found("all well", {"rate_samples_per_s": 3.5})),
        Check("bad", failing(CheckFailedError("expected 1, found 2"))),
        Check("broken", failing(ZeroDivisionError("division by zero"))),
        Check("absent", failing(ModuleNotFoundError("No module named 'torch'"))),
        Check("not here", failing(MissingError("PyTorch finds no CUDA."))),
        Check("an extra", failing(MissingExtraError("tensorrt", "tensorrt", "Building a plan"))),
        Check("no thanks", failing(RefusedError("Not for sm_90."))),
        Check("last", Found),
    ]
    run_checks(checks, tmp_path / "results")
    results, begun = read_results(tmp_path / "results")
    assert begun == ""
    assert [result.status.value for result in results] == [
        "passed", "failed", "failed", "missing", "missing", "missing", "refused", "passed",
    ]  # fmt: skip
    assert results[0] == Result("good", Status.PASSED, "all well", {"rate_samples_per_s": 3.5})
    assert results[2].detail == "ZeroDivisionError: division by zero"
    assert results[3].detail.startswith("No module named 'torch'")


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [
        ([Status.PASSED, Status.MISSING], Status.PASSED),
        ([Status.PASSED, Status.FAILED, Status.MISSING], Status.FAILED),
        ([Status.MISSING, Status.MISSING], Status.MISSING),
        ([Status.REFUSED], Status.REFUSED),
        ([], Status.NOT_RUN),
    ],
)
def test_a_part_is_as_good_as_its_worst_check(statuses, whole):
    assert worst(statuses) is whole


PART = Part("toy", "part_toy", "a toy", 60)
BEGINS = """
import json, os, signal, sys, time
file = open(sys.argv[-1], "a")
def say(**values): file.write(json.dumps(values) + "\\n"); file.flush()
say(begun="first"); say(name="first", status="passed", detail="fine", numbers={"x_s": 1.0})
say(begun="second")
"""


def part_that(ends: str, *, limit_s: float = 60.0) -> PartReport:
    return run_part(PART, limit_s=limit_s, command=(sys.executable, "-c", BEGINS + ends))


def test_a_part_that_ends_well_is_told_by_its_checks():
    report = part_that('say(name="second", status="failed", detail="2 is not 3", numbers={})')
    assert report.status is Status.FAILED
    assert [result.name for result in report.results] == ["first", "second"]
    assert report.results[0].numbers == {"x_s": 1.0}
    assert [line[:2] for line in lines_of(report)] == ["!!", "  ", "  "]
    assert "!! second: 2 is not 3" in "\n".join(lines_of(report))


def test_a_part_that_crashes_keeps_what_it_has_found_and_says_where():
    report = part_that('print("last words", flush=True); os.kill(os.getpid(), signal.SIGSEGV)')
    assert report.status is Status.CRASHED
    assert report.detail == "its process was ended by SIGSEGV during 'second'. Its last words: last words"
    assert [(result.name, result.status) for result in report.results] == [
        ("first", Status.PASSED),
        ("second", Status.CRASHED),
    ]


def test_a_part_that_exits_early_is_a_crash_too():
    report = part_that("sys.exit(3)")
    assert report.status is Status.CRASHED
    assert "ended with status 3 during 'second'. Its last words: none" in report.detail


def test_a_part_that_hangs_is_ended_with_all_that_it_has_started(tmp_path):
    pid = tmp_path / "pid"
    report = part_that(
        "child = os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '600');"
        f"open({str(pid)!r}, 'w').write(str(child)); time.sleep(600)",
        limit_s=6.0,
    )
    assert report.status is Status.TIMED_OUT
    assert report.detail == "not done after 6 s during 'second'"
    assert report.results[1].status is Status.TIMED_OUT
    for _ in range(200):
        if is_gone(int(pid.read_text())):
            return
        time.sleep(0.05)
    pytest.fail("what the part had started is still running")


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_temporary_files_of_a_part_that_is_killed_are_gone(tmp_path):
    note = tmp_path / "note"
    part_that(
        "import os, pathlib, tempfile\n"
        f"pathlib.Path({str(note)!r}).write_text(tempfile.mkdtemp())\n"
        "os.kill(os.getpid(), 9)"
    )
    assert note.read_text()
    assert not Path(note.read_text()).exists()


def test_a_part_whose_packages_are_missing_is_not_started_and_says_what_to_install():
    part = Part("toy", "part_toy", "a toy", 60, ("numpy", "no_such_module", "no_such.package"), "pip install toys")
    report = run_part(part, limit_s=60, command=("/does/not/exist",))
    assert report.status is Status.MISSING
    assert report.detail == "not installed: no_such_module, no_such.package. pip install toys"


def test_parts_that_find_no_time_left_are_not_run_and_said_so():
    told: list[str] = []
    reports = command.run_parts([PART, PART], total_s=-1.0, tell=told.append)
    assert [report.status for report in reports] == [Status.NOT_RUN] * 2
    assert "no time is left for it" in told[0]


def test_a_part_gets_no_more_time_than_is_left():
    limits: list[float] = []

    def run(part: Part, *, limit_s: float) -> PartReport:
        limits.append(limit_s)
        return PartReport(part.name, part.title, Status.PASSED, "", 0.0)

    command.run_parts([PART, Part("long", "part_long", "", 500)], total_s=90.0, tell=lambda _: None, run=run)
    assert limits[0] == 60
    assert 60 < limits[1] <= 90


def test_all_parts_are_there_and_fit_in_eight_minutes():
    assert [part.name for part in PARTS] == [
        "device", "kernels", "torch", "dali", "onnxruntime", "tensorrt", "tensorrt-rtx", "run", "tests",
    ]  # fmt: skip
    assert TOTAL_LIMIT_S < 8 * 60
    for part in PARTS:
        assert (ROOT / "benchmarks" / "gpu_check" / f"{part.module}.py").is_file()
    assert "torch" not in {name for part in PARTS if part.name in ("device", "kernels") for name in part.needs}


@pytest.fixture
def a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(command, "why_no_gpu", lambda: "")
    monkeypatch.setattr(command, "_machine", lambda: {"line": "a GPU, played", "gpus": [{"name": "played"}]})


@pytest.mark.parametrize(("bad", "status"), [("sys.exit(1)", 1), ("", 0)])
def test_the_exit_status_and_the_document_tell_the_same(a_gpu, tmp_path, capsys, bad, status):
    end = bad or 'say(name="second", status="missing", detail="", numbers={})'

    def run(part: Part, *, limit_s: float) -> PartReport:
        return run_part(part, limit_s=limit_s, command=(sys.executable, "-c", BEGINS + end))

    assert command.main(["--part", "device", "--json", str(tmp_path / "found.json")], run=run) == status
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["parts"][0]["part"] == "device"
    assert document["parts"][0]["status"] == ("crashed" if bad else "passed")
    assert document["parts"][0]["checks"][0]["numbers"] == {"x_s": 1.0}
    assert document["parts"][0]["wall_s"] > 0
    assert "machine" in document
    assert ("crashed: device" if bad else "passed: device") in capsys.readouterr().out


def test_a_child_runs_the_checks_of_its_part(a_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(Part, "checks", lambda self: (Check(self.name, Found),))
    assert command.main(["--child", "torch", str(tmp_path / "results")]) == 0
    assert read_results(tmp_path / "results") == ([Result("torch", Status.PASSED)], "")


def test_a_part_that_cannot_even_begin_says_why(tmp_path):
    run_checks(Part("toy", "no_such_part", "a toy", 60).checks(), tmp_path / "results")
    ((result,), begun) = read_results(tmp_path / "results")
    assert (result.name, result.status, begun) == ("set-up", Status.MISSING, "")
    assert "no_such_part" in result.detail


def test_a_real_child_without_a_gpu_fails_check_by_check_and_not_as_a_whole(no_gpu, tmp_path):
    """The real device part in a real process, told that there is a GPU: every check says that there is none."""
    code = (
        "import sys; from vdali.benchmarks.gpu_check import __main__ as command\n"
        f"command.why_no_gpu = lambda: ''; sys.exit(command.main(['--child', 'device', {str(tmp_path / 'results')!r}]))"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    results, begun = read_results(tmp_path / "results")
    assert begun == ""
    assert len(results) > 4
    assert {result.status for result in results} == {Status.FAILED}
    assert all("No device 'cuda:0'" in result.detail for result in results)


def test_tests_are_reported_as_run_or_not_run(tmp_path):
    report = """<testsuites><testsuite><testcase classname="tests.gpu.a" name="good" time="0.5"/>
    <testcase classname="tests.gpu.a" name="bad"><failure message="assert 1 == 2">long text</failure></testcase>
    <testcase classname="tests.gpu.a" name="left out"><skipped message="PyTorch without CUDA"/></testcase>
    <testcase classname="tests.gpu.a" name="no set-up"><error message="failed on setup"/></testcase>
    </testsuite></testsuites>"""
    run_checks(part_tests.checks_of(report), tmp_path / "results")
    results, _ = read_results(tmp_path / "results")
    assert [(result.name, result.status.value, result.detail) for result in results] == [
        ("tests.gpu.a::good", "passed", ""),
        ("tests.gpu.a::bad", "failed", "assert 1 == 2"),
        ("tests.gpu.a::left out", "missing", "not run: PyTorch without CUDA"),
        ("tests.gpu.a::no set-up", "failed", "failed on setup"),
    ]
    assert results[0].numbers == {"wall_s": 0.5}
