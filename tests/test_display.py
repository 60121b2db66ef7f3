"""What a person sees: a bar on a terminal, plain lines elsewhere, and a summary that hides nothing."""

from __future__ import annotations

import io
import os
import pty
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from vdali.display import ProgressDisplay, duration, line_of, summary_of
from vdali.engine.report import Progress, RunReport, Used
from vdali.engine.stages import StageTime

USED = Used(
    engine="onnxruntime:CPUExecutionProvider",
    reason="auto: no NVIDIA driver",
    decoder="turbo",
    model="toy",
    weights="none",
    precision="fp32",
    batch_size=32,
    micro_batch=8,
    lanes=2,
    threads_per_lane=1,
)


def report_of(**values) -> RunReport:
    progress = Progress(listed=12, rows=9, failures=3, elapsed_s=2.0)
    return RunReport(Path("out"), values.pop("status", "finished"), USED, progress, **values)


def test_a_pipe_gets_whole_lines_without_carriage_returns_or_colours():
    stream = io.StringIO()
    with ProgressDisplay(stream=stream, interval_s=0) as display:
        for rows in range(5):
            display.update(Progress(listed=100, rows=rows, failures=1, total=100, elapsed_s=1.0))
    text = stream.getvalue()
    assert len(text.splitlines()) == 5
    assert text.endswith("\n")
    assert not re.search(r"[\r\x1b\b]", text)


def test_a_pipe_gets_no_more_lines_than_intervals_have_passed():
    stream = io.StringIO()
    started = time.monotonic()
    with ProgressDisplay(stream=stream, interval_s=0.05) as display:
        while time.monotonic() - started < 0.3:
            display.update(Progress(listed=10, rows=5, elapsed_s=1.0))
    passed = (time.monotonic() - started) / 0.05
    assert 1 <= len(stream.getvalue().splitlines()) <= passed + 1


def test_a_short_run_into_a_pipe_says_nothing_before_its_summary():
    stream = io.StringIO()
    with ProgressDisplay(stream=stream) as display:
        for rows in range(1000):
            display.update(Progress(listed=1000, rows=rows, elapsed_s=1.0))
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_that_leaves_no_trace():
    outer, inner = pty.openpty()
    os.set_blocking(outer, False)
    with os.fdopen(inner, "w") as terminal:
        with ProgressDisplay(stream=terminal) as display:
            display.update(Progress(listed=100, rows=40, failures=2, total=100, elapsed_s=2.0))
            time.sleep(0.5)
            shown = os.read(outer, 1 << 16).decode()
        after = os.read(outer, 1 << 16).decode()
    os.close(outer)
    assert "42 of 100; 2 failures; 21.0 images/s, 3 s left" in shown
    assert "\x1b[2K" in after


def test_a_narrow_terminal_gets_a_cut_line_and_not_two():
    outer, inner = pty.openpty()  # of no stated width: 80 columns
    os.set_blocking(outer, False)
    with os.fdopen(inner, "w") as terminal, ProgressDisplay(stream=terminal) as display:
        display.update(Progress(listed=10**7, rows=1_234_567, failures=98_765, total=10**7, elapsed_s=2000.0))
        time.sleep(0.5)
        shown = os.read(outer, 1 << 16).decode()
    os.close(outer)
    assert "1,333,332 of 10,000,000; 98,765 failures" in shown
    assert "\n" not in shown


def test_a_terminal_shows_what_is_listed_while_the_total_is_unknown():
    outer, inner = pty.openpty()
    os.set_blocking(outer, False)
    with os.fdopen(inner, "w") as terminal, ProgressDisplay(stream=terminal) as display:
        display.update(Progress(listed=512, rows=40, elapsed_s=2.0))
        time.sleep(0.5)
        shown = os.read(outer, 1 << 16).decode()
    os.close(outer)
    assert "40, 512 listed so far" in shown


def test_a_line_tells_done_of_total_failures_rate_and_time_left():
    progress = Progress(listed=3000, already_done=1000, rows=950, failures=50, total=5000, elapsed_s=10.0)
    assert line_of(progress) == "2,000 of 5,000; 50 failures; 100.0 images/s, 30 s left"


def test_a_line_before_anything_has_ended_tells_no_time_left():
    assert line_of(Progress(listed=7, total=100)) == "0 of 100; 0 failures; 0.0 images/s"
    assert line_of(Progress(listed=7)) == "0, 7 listed so far; 0 failures; 0.0 images/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.6, "1 h 0 min"),
        (18720, "5 h 12 min"),
        (400_000, "111 h 6 min"),
    ],
)
def test_durations_are_told_in_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_the_summary_tells_counts_rate_cost_and_what_was_really_used():
    report = report_of(
        rows_total=9,
        failures_total=3,
        cpu_s=0.6,
        sink_s=0.25,
        failures_by_kind=Counter({"decode/truncated": 2, "read/gone": 1}),
        ignored=Counter({"hidden": 4}),
        decoded_by=Counter(turbo=6, pillow=3),
        stages={"decode": StageTime(1.0, 0.3, 3), "infer": StageTime(1.0, 0.1, 3)},
    )
    assert summary_of(report).splitlines() == [
        "finished: 9 rows, 3 failures in 2.0 s: 6.0 images/s, 50.00 CPU-ms/image",
        "  toy fp32 (weights: none) on onnxruntime:CPUExecutionProvider; auto: no NVIDIA driver",
        "  decoder turbo (6 turbo, 3 pillow); 2 lanes x 1 thread, micro-batch 8",
        "  CPU time of the lanes: decode 75 %, infer 25 %; sink 0.25 s",
        "  failures: 2 decode/truncated, 1 read/gone",
        "  ignored: 4 hidden",
        "  out: 9 rows, 3 failures in all",
    ]


def test_the_summary_counts_salvaged_pictures_and_what_earlier_sessions_did():
    report = report_of(salvaged=2)
    report.progress.already_done = 40
    text = summary_of(report)
    assert "2 truncated pictures became rows flagged `salvaged`" in text
    assert "(40 done before)" in text
    assert "nothing decoded" in text


def test_the_summary_of_a_finished_run_says_that_nothing_was_done():
    text = summary_of(report_of(status="already_finished", rows_total=1234, failures_total=5))
    assert text.startswith("Nothing to do: out is finished (1,234 rows, 5 failures).")
