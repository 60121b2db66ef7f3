"""Following an advice: its options reach the run, and its gain is measured against what was promised."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from models import mean_colour_model
from pictures import encoded
from vdali.benchmarks.advice import follow_advice, with_options
from vdali.engine.batch import Sample
from vdali.engine.decoders.interface import DecodeMode, DecodeOptions
from vdali.engine.decoders.make import DecoderName
from vdali.engine.lanes import LaneOptions


class SlowSource:
    """Small pictures whose reading takes a tenth of a second."""

    def __init__(self) -> None:
        self.ignored: Counter[str] = Counter()
        self._picture = encoded(1, "JPEG", (40, 30))

    def describe(self) -> str:
        return "slow source"

    def __iter__(self) -> Iterator[Sample]:
        return (Sample(str(number), self._read) for number in range(1000))

    def _read(self) -> bytes:
        time.sleep(0.1)
        return self._picture


def test_the_options_of_an_advice_change_just_those_of_the_run():
    lanes = LaneOptions(lanes=1, decode=DecodeOptions(max_pixels=7, mode=DecodeMode.EXACT))
    after = with_options(lanes, {"lanes": 4, "micro_batch": 16, "decode": "fast", "decoder": "pillow"})
    assert (after.lanes, after.micro_batch, after.decoder) == (4, 16, DecoderName.PILLOW)
    assert after.decode == DecodeOptions(max_pixels=7, mode=DecodeMode.FAST)
    assert after.batch_size == lanes.batch_size


def test_the_gain_of_an_advice_is_measured_beside_the_promise(tmp_path):
    model = mean_colour_model(tmp_path / "mean.onnx", (8, 8))
    found = follow_advice(model, SlowSource(), LaneOptions(lanes=1, micro_batch=1), rounds=1, seconds=0.4)
    assert found["verdict"].startswith("input-bound: a read waits 1")
    assert found["change"].startswith("--lanes ")
    assert found["predicted_gain"] == pytest.approx(found["measured_gain"]["median"], rel=0.2)
