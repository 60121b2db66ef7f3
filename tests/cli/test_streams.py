"""The command where stdout, stderr or the output folder cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys

from commands import COMMAND, ids_of, record_of, run_vdali


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


def test_ctrl_c_while_modules_load_is_status_130_with_a_message():
    code = """
import os, runpy, signal, sys

class InterruptsAtClick:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, InterruptsAtClick())
runpy.run_module("vdali", run_name="__main__", alter_sys=True)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "vdali: interrupted.\n")
