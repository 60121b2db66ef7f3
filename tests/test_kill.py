"""Whatever ends a run, starting it again makes it whole: kills, interrupts, a full disk, two at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import (
    failed_ids_of,
    ids_of,
    record_of,
    run_vdali,
    start_vdali,
    status_of,
    vectors_of,
    wait_until,
)
from models import mean_colour_model
from pictures import encoded

COUNT = 2000
KILLS = 10
PART_ROWS = 100
MICRO_BATCH = 8
TELLING_RUN = """
import mmap, sys
import vdali
inputs, model, out, told = sys.argv[1:]
with open(told, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
def tell(progress):
    shared[:8] = progress.ended.to_bytes(8, "little")
vdali.run(inputs, model=model, out=out, part_rows=100, on_progress=tell)
"""

INTERRUPTED_SCHEDULER = """
import os, signal, sys, threading, time
from vdali.engine.device import HostDevice
from vdali.engine.scheduler import Scheduler
from vdali.engine.stages import Lane, Role, Stage

def work(value, lease):
    return sum(range(300))

def interrupt(moment_s):
    time.sleep(moment_s)
    os.kill(os.getpid(), signal.SIGINT)

for trial in range(20):
    streams = [HostDevice().new_stream(str(number)) for number in range(4)]
    scheduler = Scheduler([Lane(dict.fromkeys(Role, stream), [Stage("work", Role.IN, work)]) for stream in streams])
    thread = threading.Thread(target=interrupt, args=(0.003 + trial / 1000,))
    try:
        thread.start()
        for _ in scheduler.run(range(10**9)):
            pass
    except KeyboardInterrupt:
        pass
    scheduler.close()
    thread.join()
print("all ended")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("model") / "mean.onnx", size=(64, 64))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """2,000 links to 20 pictures and, every 50th, to a file that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    files = folder / "files"
    files.mkdir()
    for number in range(20):
        (files / f"{number}.jpg").write_bytes(encoded(number, "JPEG", (250 + number, 190)))
    (files / "bad.jpg").write_bytes(b"<html>")
    (folder / "in").mkdir()
    for number in range(COUNT):
        target = "bad" if number % 50 == 49 else number % 20
        (folder / "in" / f"{number:05d}.jpg").symlink_to(files / f"{target}.jpg")
    return folder / "in"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pictures, model) -> Path:
    """OUT of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    done = run_vdali("run", pictures, "-m", model, "-o", out)
    assert done.returncode == 0, done.stderr
    return out


def assert_same(out: Path, whole: Path, pictures: Path) -> None:
    """Every input ended once, and every vector is that of the undisturbed run."""
    ids, failed = ids_of(out), failed_ids_of(out)
    assert sorted([*ids, *failed]) == sorted(os.listdir(pictures))
    assert sorted(failed) == sorted(failed_ids_of(whole))
    vectors, expected = vectors_of(out), vectors_of(whole)
    assert all(np.array_equal(vectors[sample_id], expected[sample_id]) for sample_id in expected)
    counts = record_of(out)["counts"]
    assert (counts["rows"], counts["failures"]) == (len(ids), len(failed))
    assert record_of(out)["status"] == "finished"


@pytest.mark.slow
def test_killed_at_ten_random_moments_a_run_ends_as_if_nothing_had_been(tmp_path, pictures, model, whole):
    out = tmp_path / "out"
    command = ("run", pictures, "-m", model, "-o", out, "--part-rows", PART_ROWS)
    moments = random.Random(3)
    longest_s = record_of(whole)["sessions"][0]["elapsed_s"] / 6
    ended = 0
    for kill in range(KILLS):
        before = status_of(out)
        sessions = len(record_of(out)["sessions"]) if before else 0
        with start_vdali(*command) as process:
            if kill % 5:  # else: some moment of the start
                wait_until(lambda n=sessions: status_of(out) and len(record_of(out)["sessions"]) > n, process)
                time.sleep(moments.uniform(0, longest_s))
            else:
                time.sleep(moments.uniform(0, 1))
            process.kill()
        ids = [*ids_of(out), *failed_ids_of(out)]
        assert len(ids) == len(set(ids)) >= ended
        ended = len(ids)
    last = run_vdali(*command)
    assert last.returncode == 0, last.stderr
    assert_same(out, whole, pictures)
    assert [session["status"] for session in record_of(out)["sessions"]].count("killed") >= KILLS // 2


@pytest.mark.slow
def test_a_kill_costs_no_more_than_one_part(tmp_path, pictures, model, whole):
    out, told = tmp_path / "out", tmp_path / "told"
    moments = random.Random(5)
    for _ in range(3):
        told.write_bytes(bytes(8))
        committed = len(ids_of(out)) + len(failed_ids_of(out))
        with subprocess.Popen([sys.executable, "-c", TELLING_RUN, pictures, model, out, told]) as process:
            wait_until(lambda: int.from_bytes(told.read_bytes(), "little") >= moments.randint(30, 400), process)
            process.kill()
        inferred = int.from_bytes(told.read_bytes(), "little")
        kept = len(ids_of(out)) + len(failed_ids_of(out)) - committed
        assert inferred > 0
        # the batch that completed the last part may not have been told of yet
        assert -MICRO_BATCH <= inferred - kept <= PART_ROWS
    assert run_vdali("run", pictures, "-m", model, "-o", out).returncode == 0
    assert_same(out, whole, pictures)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_all_that_it_did_in_order_and_goes_on_later(tmp_path, pictures, model, whole, stop):
    out = tmp_path / "out"
    command = ("run", pictures, "-m", model, "-o", out, "--part-rows", PART_ROWS)
    with start_vdali(*command) as process:
        wait_until(lambda: ids_of(out), process)
        process.send_signal(stop)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.startswith("interrupted: ")
    record = record_of(out)
    assert record["status"] == record["sessions"][0]["status"] == "interrupted"
    ids, failed = ids_of(out), failed_ids_of(out)
    assert (record["counts"]["rows"], record["counts"]["failures"]) == (len(ids), len(failed))
    # the session itself may not have counted the batch that the sink was taking at that moment
    counted = record["sessions"][0]["rows"] + record["sessions"][0]["failures"]
    assert 0 <= len(ids) + len(failed) - counted <= MICRO_BATCH
    assert ids == sorted(ids)
    assert sorted([*ids, *failed]) == sorted(os.listdir(pictures))[: len(ids) + len(failed)]
    resumed = run_vdali(*command)
    assert resumed.returncode == 0, resumed.stderr
    assert record_of(out)["sessions"][1]["already_done"] == len(ids) + len(failed)
    assert_same(out, whole, pictures)


@pytest.mark.slow
def test_more_interrupts_while_it_ends_neither_hang_nor_harm_a_run(tmp_path, pictures, model, whole):
    out = tmp_path / "out"
    command = ("run", pictures, "-m", model, "-o", out, "--part-rows", PART_ROWS)
    for pause_s in (0.0, 0.001, 0.01, 0.05):
        before = len(ids_of(out))
        with start_vdali(*command) as process:
            wait_until(lambda n=before: len(ids_of(out)) > n, process)
            for _ in range(3):
                process.send_signal(signal.SIGINT)
                time.sleep(pause_s)
            said = process.communicate(timeout=60)[1]
        # -SIGINT where Python itself is ending already; a shell calls both 130
        assert process.returncode in (130, -signal.SIGINT), said
        assert "Traceback" not in said
        ids = [*ids_of(out), *failed_ids_of(out)]
        assert len(ids) == len(set(ids))
    assert run_vdali(*command).returncode == 0
    assert_same(out, whole, pictures)


def test_an_interrupt_before_the_first_picture_ends_with_130_too(tmp_path, pictures, model):
    with start_vdali("run", pictures, "-m", model, "-o", tmp_path / "out", "--lanes", 64) as process:
        wait_until(lambda: (tmp_path / "out").exists(), process)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "interrupted" in said


def test_an_interrupt_at_any_moment_ends_the_scheduler_at_once():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_SCHEDULER], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("all ended\n", "")


@pytest.fixture
def small_disk(tmp_path) -> Path:
    """A file system of 128 kB; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_ends_a_run_with_a_message_and_it_goes_on_once_there_is_space(small_disk, pictures, model, whole):
    out = small_disk / "out"
    command = ("run", pictures, "-m", model, "-o", out, "--part-rows", 25)
    full = run_vdali(*command)
    assert full.returncode == 1
    assert f"vdali: Cannot write {out}" in full.stderr
    assert "No space left on device. Free some space, then run the same command again" in full.stderr
    assert "Traceback" not in full.stderr
    done = len(ids_of(out)) + len(failed_ids_of(out))
    assert 25 <= done < COUNT
    subprocess.run(["mount", "-o", "remount,size=32m", small_disk], check=True)
    resumed = run_vdali(*command)
    assert resumed.returncode == 0, resumed.stderr
    assert record_of(out)["sessions"][-1]["already_done"] == done
    assert_same(out, whole, pictures)


def test_a_second_process_on_the_same_output_is_refused_and_does_not_disturb_the_first(
    tmp_path, pictures, model, whole
):
    out = tmp_path / "out"
    with start_vdali("run", pictures, "-m", model, "-o", out) as first:
        wait_until(lambda: status_of(out), first)
        first.send_signal(signal.SIGSTOP)
        second = run_vdali("run", pictures, "-m", model, "-o", out)
        first.send_signal(signal.SIGCONT)
        first.communicate()
    assert second.returncode == 6
    assert f"{out} is being written by another process (id {first.pid})" in second.stderr
    assert first.returncode == 0
    assert_same(out, whole, pictures)
