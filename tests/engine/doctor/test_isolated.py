from __future__ import annotations

import pytest
from vdali.engine.doctor.isolated import MAX_TEXT, Probe, shortened


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes an importable module from its source and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str) -> str:
        (tmp_path / "under_test.py").write_text(source)
        return "under_test"

    return make


def test_a_probe_tells_what_it_found_whatever_the_library_prints(module):
    name = module("print('hello from C'); __version__ = '1.2'")
    answer = Probe("package", name).answer()
    assert (answer.facts, answer.error) == ({"version": "1.2"}, "")


def test_an_exception_is_the_error(module):
    answer = Probe("package", module("raise OSError('first line\\nlibfoo.so.1: cannot open')")).answer()
    assert (answer.facts, answer.error) == ({}, "OSError: libfoo.so.1: cannot open")


def test_a_missing_package_is_the_error():
    assert Probe("package", "no_such_package").answer().error.startswith("ModuleNotFoundError: ")


def test_a_crash_is_the_error(module):
    answer = Probe("package", module("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")).answer()
    assert answer.error == "crashed (SIGSEGV)"


def test_a_crash_after_the_answer_is_still_an_error(module):
    source = "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGABRT); __version__ = '1'"
    assert Probe("package", module(source)).answer().error == "crashed (SIGABRT)"


def test_a_process_that_ends_itself_is_the_error(module):
    answer = Probe(
        "package", module("import os, sys; print('gone', file=sys.stderr, flush=True); os._exit(3)")
    ).answer()
    assert answer.error == "gone"


def test_a_silent_end_is_the_error(module):
    assert Probe("package", module("import os; os._exit(0)")).answer().error == "ended with status 0"


def test_a_hanging_library_costs_no_more_than_the_timeout(module):
    answer = Probe("package", module("import time; time.sleep(60)"), timeout_s=1).answer()
    assert answer.error == "gave no answer within 1 s"


def test_a_file_in_the_current_folder_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "simplejpeg.py").write_text("raise SystemError('picked up from the current folder')")
    monkeypatch.chdir(tmp_path)
    assert "current folder" not in Probe("package", "simplejpeg").answer().error


def test_a_long_text_is_cut_to_its_last_line():
    assert shortened("") == ""
    assert shortened("a\n b \n\n") == "b"
    assert len(shortened("x" * 5000)) <= MAX_TEXT + 3
