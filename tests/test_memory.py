"""Memory of a long run stays flat however many pictures are bad, and results come before the listing ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import vdali
from models import mean_colour_model
from pictures import encoded

COUNT = 20_000
BAD_EVERY = 20
WARM = 4_000
MOST_GROWTH = 50e6

MEASURED_RUN = """
import json, os, sys
import vdali

inputs, model, out, decoder = sys.argv[1:]
page = os.sysconf("SC_PAGE_SIZE")
resident = {}

def sample(progress):
    with open("/proc/self/statm") as file:
        step = progress.ended // 500 * 500
        resident[step] = max(resident.get(step, 0), int(file.read().split()[1]) * page)

report = vdali.run(inputs, model=model, out=out, decoder=decoder, on_progress=sample)
print(json.dumps({"rows": report.rows_total, "failures": report.failures_total, "resident": resident}))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("model") / "mean.onnx", size=(32, 32))


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """20,000 links to 16 pictures of several kinds and sizes; one in 20 leads to one of four bad files."""
    folder = tmp_path_factory.mktemp("many")
    files = folder / "files"
    files.mkdir()
    kinds = ("JPEG", "JPEG", "JPEG", "PNG")
    for number in range(16):
        (files / f"good-{number}").write_bytes(encoded(number, kinds[number % 4], (60 + 9 * number, 80)))
    whole = encoded(1, "JPEG", (120, 90))
    for number, data in enumerate((b"", whole[: len(whole) // 2], b"<html>", whole[:20])):
        (files / f"bad-{number}").write_bytes(data)
    (folder / "in").mkdir()
    for number in range(COUNT):
        bad = number % BAD_EVERY == 7
        target = f"bad-{number // BAD_EVERY % 4}" if bad else f"good-{number % 16}"
        (folder / "in" / f"{number:05d}.jpg").symlink_to(files / target)
    return folder / "in"


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["turbo", "dali"])
def test_bad_pictures_do_not_make_memory_grow(tmp_path, many, model, decoder):
    command = [sys.executable, "-c", MEASURED_RUN, many, model, tmp_path / "out", decoder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (measured["rows"], measured["failures"]) == (COUNT - COUNT // BAD_EVERY, COUNT // BAD_EVERY)
    resident = {int(step): size for step, size in measured["resident"].items()}
    assert len(resident) > 30
    warm = max(size for step, size in resident.items() if step <= WARM)
    later = max(size for step, size in resident.items() if step > WARM)
    assert later - warm < MOST_GROWTH


def test_the_first_rows_come_while_most_is_still_to_be_listed(tmp_path, model):
    data = encoded(3, "PNG", (20, 20))
    listed = 0
    listed_at_first_row: list[int] = []

    def samples():
        nonlocal listed
        for listed in range(1, 3001):
            yield f"{listed}.png", data

    def see(progress) -> None:
        if progress.rows and not listed_at_first_row:
            listed_at_first_row.append(listed)

    report = vdali.run(samples(), model=model, out=tmp_path / "out", on_progress=see, lanes=2)
    assert report.rows_total == 3000
    assert listed_at_first_row[0] < 300


def test_samples_are_taken_no_faster_than_they_are_inferred(tmp_path, model):
    """A source that is quicker than the lanes must not pile up in memory."""
    data = encoded(3, "PNG", (20, 20))
    listed = 0
    ahead: list[int] = []

    def samples():
        nonlocal listed
        for listed in range(1, 2001):
            yield f"{listed}.png", data

    vdali.run(
        samples(),
        model=model,
        out=tmp_path / "out",
        lanes=2,
        micro_batch=8,
        on_progress=lambda progress: ahead.append(listed - progress.ended),
    )
    lanes, in_flight, waiting = 2, 2, 4
    assert 0 < max(ahead) <= 8 * (lanes * in_flight * waiting + 1)
