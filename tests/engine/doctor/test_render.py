from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from vdali.engine.doctor.render import render
from vdali.engine.doctor.report import Check, Report, Status, Verdict

REPORT = Report(
    (
        Check("machine", "CPU", Status.OK, "[bold]Maker[/bold] X1: 2 threads", facts={"quota_cpus": 1.5}),
        Check("machine", "memory", Status.WARNING, "0.5 GiB, 0.1 available", "Use a smaller --batch-size."),
        Check("GPU", "driver", Status.MISSING, "no NVIDIA driver (" + "libcuda.so.1" * 8 + ")", "Install one."),
        Check("runtimes", "ONNX Runtime", Status.ERROR, "does not load: 'x'", "pip install onnxruntime-gpu"),
    ),
    Verdict("cpu", "no NVIDIA driver", ("turbo", "pillow")),
)


def rendered(width: int, **settings) -> str:
    file = io.StringIO()
    render(REPORT, Console(file=file, width=width, **settings))
    return file.getvalue()


def without_spaces(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("width", [20, 40, 59, 60, 80, 200])
def test_every_width_keeps_every_word_and_fits(width):
    text = rendered(width)
    assert max(map(len, text.splitlines())) <= width
    for check in REPORT.checks:
        assert check.status.value in text
        assert check.name in text
    if width not in {60, 80}:
        for check in REPORT.checks:
            assert without_spaces(check.found) in without_spaces(text)
            assert without_spaces(check.advice) in without_spaces(text)
    assert "--deviceautousescpu:noNVIDIAdriver" in without_spaces(text)
    assert "decodersthatwork:turbo,pillow" in without_spaces(text)


def test_a_pipe_gets_no_escape_codes():
    assert "\x1b" not in rendered(80)
    assert "\x1b" in rendered(80, force_terminal=True, color_system="standard")


def test_the_advice_stands_in_the_column_of_the_finding():
    lines = rendered(100).splitlines()
    found = next(line for line in lines if "0.5 GiB" in line)
    assert lines[lines.index(found) + 1].index("-> Use") == found.index("0.5 GiB")


def test_no_decoder_is_said_in_words():
    file = io.StringIO()
    render(Report((), Verdict("cpu", "no driver", ())), Console(file=file, width=80))
    assert "decoders that work: none" in file.getvalue()


def test_the_json_form_holds_all_and_survives_json():
    document = json.loads(json.dumps(REPORT.to_json()))
    assert document["verdict"] == {"device": "cpu", "reason": "no NVIDIA driver", "decoders": ["turbo", "pillow"]}
    assert [check["status"] for check in document["checks"]] == ["ok", "warning", "missing", "error"]
    assert document["checks"][0]["facts"] == {"quota_cpus": 1.5}
    assert [check.name for check in REPORT.broken] == ["ONNX Runtime"]
