from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import toy_systems
from vdali.benchmarks import entrant as entrant_module
from vdali.benchmarks import usage
from vdali.benchmarks.comparison import Status
from vdali.benchmarks.entrant import Entrant, take_turns
from vdali.benchmarks.process import SystemFailedError, SystemProcess
from vdali.benchmarks.usage import cpu_s, memory_bytes, watched_memory
from vdali.engine.cpu import cpu_allowance


def interrupt_when(is_time):
    """Ctrl-C for this process, as soon as ``is_time`` says so."""
    while not is_time():
        time.sleep(0.01)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


FILES = [Path("a.jpg"), Path("b.jpg")]


def test_a_system_runs_in_a_process_of_its_own_and_its_outputs_come_back():
    system = SystemProcess(toy_systems.Counting, FILES)
    assert system.description == "counts over 2 files"
    assert system.warm_up() > 10 << 20
    found = system.run()
    assert found.wall_s > 0
    assert found.latencies_s == (0.25, 0.25)
    assert system.outputs()["embedding"].tolist() == [[2, 2], [2, 2]]
    system.close()


def test_an_error_in_a_pass_becomes_one_plain_line():
    system = SystemProcess(toy_systems.Counting, [])
    with pytest.raises(SystemFailedError, match=r"^ValueError: nothing to count$") as caught:
        system.run()
    assert not caught.value.absent
    system.close()


def test_a_process_that_is_killed_is_told_with_its_signal():
    system = SystemProcess(toy_systems.Killed, FILES)
    with pytest.raises(SystemFailedError, match="ended by SIGKILL, perhaps for lack of memory"):
        system.run()
    system.close()


def test_a_system_at_work_that_nobody_awaits_is_ended_with_its_workers(tmp_path):
    note = tmp_path / "worker"
    system = SystemProcess(toy_systems.Endless, [note])
    timer = threading.Timer(0.0, interrupt_when, [lambda: note.exists() and note.read_text()])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        system.run()
    system.close()
    timer.join()
    assert system._process.exitcode == 128 + signal.SIGTERM
    worker = int(note.read_text())
    until_s = time.monotonic() + 30
    while is_alive(worker):
        assert time.monotonic() < until_s, "the worker was left behind"
        time.sleep(0.01)


@pytest.mark.parametrize("make", [toy_systems.needs_a_package, toy_systems.says_it_is_missing])
def test_a_system_whose_package_is_missing_is_absent(make):
    with pytest.raises(SystemFailedError) as caught:
        SystemProcess(make, FILES)
    assert caught.value.absent


def test_one_that_fails_does_not_stop_the_others():
    entrants = [
        Entrant("killed", toy_systems.Killed),
        Entrant("absent", toy_systems.needs_a_package),
        Entrant("counts", toy_systems.Counting),
    ]
    said: list[str] = []
    elsewhere = take_turns(entrants, FILES, rounds=3, say=said.append)
    assert elsewhere is None  # too short to tell
    killed, absent, counts = (entrant.row(len(FILES)) for entrant in entrants)
    assert killed.status is Status.FAILED
    assert "SIGKILL" in killed.note
    assert killed.description == "counts over 2 files"
    assert absent.status is Status.ABSENT
    assert "a_package_that_nobody_has" in absent.note
    assert counts.status is Status.OK
    assert counts.throughput is not None
    assert counts.latency_p99_s == 0.25
    assert len(entrants[2].rounds) == 3
    assert entrants[2].outputs is not None
    assert np.unique(entrants[2].outputs["embedding"]).tolist() == [4]  # the warm-up is a pass too
    assert any("SIGKILL" in line for line in said)


def test_what_others_take_of_the_cpus_is_told_beside_the_rounds(monkeypatch):
    own: list[float] = []
    watch = SimpleNamespace(share=lambda own_s: own.append(own_s) or 0.25)
    monkeypatch.setattr(entrant_module, "OthersWatch", lambda: watch)
    entrants = [Entrant("counts", toy_systems.Counting), Entrant("absent", toy_systems.needs_a_package)]
    assert take_turns(entrants, FILES, rounds=2, say=lambda _: None) == 0.25
    assert own == [sum(one.cpu_s for one in entrants[0].rounds)]


def test_what_others_take_is_all_that_was_used_less_our_own(monkeypatch):
    monkeypatch.setattr(usage, "busy_s", iter([100.0, 101.5, 7.0, 7.1]).__next__)
    monkeypatch.setattr(usage, "time", SimpleNamespace(perf_counter=iter([10.0, 12.0, 0.0, 0.1]).__next__))
    assert usage.OthersWatch().share(0.5) == pytest.approx(1.0 / (2 * cpu_allowance().affinity))
    assert usage.OthersWatch().share(0.0) is None  # too short to tell


def test_cpu_time_counts_workers_that_live_and_workers_that_ended():
    import subprocess
    import sys

    busy = "import time\nwhile time.process_time() < 0.4: pass\nprint('done', flush=True)"
    before = cpu_s()
    subprocess.run([sys.executable, "-c", busy], check=True, capture_output=True)
    ended = cpu_s()
    assert ended - before > 0.35
    with subprocess.Popen([sys.executable, "-c", busy + "\ninput()"], stdin=-1, stdout=-1) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"done\n"
        assert cpu_s() - ended > 0.35
        worker.communicate(b"\n")


def test_memory_counts_what_a_worker_holds():
    import subprocess
    import sys

    holds = "held = bytearray(b'x') * (64 << 20)\nprint('done', flush=True)\ninput()"
    process = psutil.Process()
    before = memory_bytes(process)
    with (
        watched_memory(process.pid) as peak,
        subprocess.Popen([sys.executable, "-c", holds], stdin=-1, stdout=-1) as worker,
    ):
        assert worker.stdout is not None
        worker.stdout.readline()
        assert memory_bytes(process) - before > 60 << 20
        deadline_s = time.monotonic() + 10
        while peak.bytes_ - before < 60 << 20 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        worker.communicate(b"\n")
    assert peak.bytes_ - before > 60 << 20
