"""The command in this process, a model and pictures for it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from models import mean_colour_model, red_segmenter
from pictures import write_numbered
from vdali.cli import main


class Ended(NamedTuple):
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("model") / "mean.onnx", size=(16, 16))


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory) -> Path:
    return red_segmenter(tmp_path_factory.mktemp("model") / "seg.onnx")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """30 numbered pictures; number 7 is none."""
    folder = tmp_path_factory.mktemp("pictures") / "in"
    write_numbered(folder, 30, bad=frozenset({7}))
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
