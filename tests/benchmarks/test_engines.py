"""What engines cost to make, on a model that takes no time."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from int8_models import convolutional
from vdali.benchmarks.engines import measure_engines, render_engines


def test_engines_are_made_in_a_cache_of_their_own_and_found_there_the_second_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path / "mine"))
    model = tmp_path / "model.onnx"
    onnx.save(convolutional()[0], model)
    found = measure_engines([str(model)], say=lambda line: None)
    assert [row["status"] for row in found["rows"]] == ["built"] * 3
    assert found["hits"] == 3
    assert not (tmp_path / "mine").exists()
    assert os.environ["VDALI_CACHE"] == str(tmp_path / "mine")
    for row in found["rows"]:
        assert row["size_bytes"] > 1000
        assert min(row["convert_s"], row["gate_s"]) >= 0
        assert (row["plan_bytes"] > 1000) == (found["flavour"] is not None)
    table = render_engines(found)
    assert "int8" in table
    assert "again: 3 of 3 from the cache" in table


def test_a_refused_engine_says_why_in_the_table(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"weights go here")
    table = render_engines(measure_engines([str(broken)], say=lambda line: None))
    assert "refused: " in table
    assert "broken.onnx" in table
    assert "again: 0 of 3" in table
