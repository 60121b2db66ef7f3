"""Diagnoses of runs that were rigged to be held back by one thing, and the arithmetic behind the verdict."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from models import mean_colour_model
from rigged import heavy_model, photo
from vdali.engine.batch import Failure, Sample
from vdali.engine.decoders.interface import DecodeMode, DecodeOptions
from vdali.engine.decoders.make import DecoderName
from vdali.engine.diagnosis.diagnose import diagnose
from vdali.engine.diagnosis.model import DECODE, DOWNLOAD, INFER, LISTING, READ, ROWS, SINK, UPLOAD, Resource
from vdali.engine.diagnosis.text import text_of
from vdali.engine.errors import InputNotFoundError, ModelError, ReadError, UsageError
from vdali.engine.lanes import LaneOptions
from vdali.engine.sources.open import open_source


class RiggedSource:
    """The same pictures for ever under ``count`` names; each read waits ``wait_s``, or only the first of its name."""

    def __init__(self, pictures: list[bytes], count: int, wait_s: float = 0.0, *, only_first: bool = False) -> None:
        self.ignored: Counter[str] = Counter()
        self._pictures = pictures
        self._count = count
        self._wait_s = wait_s
        self._only_first = only_first
        self._seen: set[int] = set()

    def describe(self) -> str:
        return "rigged source"

    def __iter__(self) -> Iterator[Sample | Failure]:
        for number in range(self._count):
            yield Sample(str(number), lambda number=number: self._read(number))

    def _read(self, number: int) -> bytes:
        if not (self._only_first and number in self._seen):
            _wait(self._wait_s)
        self._seen.add(number)
        if number == 3:
            raise ReadError("gone", "was deleted")
        return self._pictures[number % len(self._pictures)]


def _wait(seconds: float) -> None:
    if seconds:  # even a sleep of nothing gives the CPU away
        time.sleep(seconds)


@pytest.fixture(scope="module")
def light_model(tmp_path_factory) -> Path:
    return mean_colour_model(tmp_path_factory.mktemp("light") / "mean.onnx", (8, 8))


@pytest.fixture(scope="module")
def heavy(tmp_path_factory) -> Path:
    return heavy_model(tmp_path_factory.mktemp("heavy") / "heavy.onnx")


def test_a_slow_disk_is_found_and_more_lanes_are_advised(light_model):
    source = RiggedSource([photo(40, 30)], 2000, wait_s=0.1)
    found = diagnose(light_model, source, lanes=LaneOptions(lanes=1, micro_batch=1), device="cpu", seconds=0.5)
    assert (found.resource, found.stage) == (Resource.DISK, READ)
    assert found.verdict.startswith("input-bound: a read waits 1")
    assert 7.5 < found.throughput <= 10
    assert found.engine_idle > 0.9
    first = found.advice[0]
    assert list(first.options) == ["lanes"]
    assert first.gain == pytest.approx(first.options["lanes"], rel=0.15)
    assert f"with --lanes {first.options['lanes']}" in found.verdict


def test_heavy_decoding_before_a_tiny_model_is_found_and_a_cheaper_decode_is_advised_first(light_model):
    options = LaneOptions(decode=DecodeOptions(mode=DecodeMode.EXACT), micro_batch=2)
    source = RiggedSource([photo(1600, 1200)], 2000)
    found = diagnose(light_model, source, lanes=options, device="cpu", seconds=0.6, images=24)
    assert (found.resource, found.stage) == (Resource.CPU, DECODE)
    assert re.match(r"input-bound: decode takes (9\d|100) %", found.verdict)
    assert dict(found.advice[0].options) == {"decode": "fast"}
    assert found.advice[0].gain > 1.2
    assert any("more CPU" in advice.change and not advice.options for advice in found.advice)


def test_a_heavy_model_on_tiny_pictures_is_found(heavy):
    source = RiggedSource([photo(16, 16, "PNG")], 5000)
    found = diagnose(heavy, source, lanes=LaneOptions(micro_batch=2), device="cpu", seconds=0.5, images=32)
    assert (found.resource, found.stage) == (Resource.CPU, INFER)
    assert re.match(r"engine-bound: the engine takes (9\d|100) %", found.verdict)
    assert any("twice as fast" in advice.change for advice in found.advice)
    shares = {stage.name: stage.cpu_share for stage in found.stages}
    assert shares[INFER] > 0.9
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_first_pass_that_is_slower_than_the_second_is_told_and_judged_by(light_model):
    source = RiggedSource([photo(40, 30)], 3000, wait_s=0.02, only_first=True)
    found = diagnose(light_model, source, device="cpu", seconds=0.6, images=64)
    assert (found.resource, found.stage) == (Resource.DISK, READ)
    assert any("the first time" in note and "again" in note for note in found.notes)
    assert any("not in the page cache" in note for note in found.notes)


def test_another_decoder_is_advised_where_it_is_cheaper(light_model):
    exact = DecodeOptions(mode=DecodeMode.EXACT)
    options = LaneOptions(decoder=DecoderName.PILLOW, decode=exact, micro_batch=2)
    source = RiggedSource([photo(800, 600)], 2000)
    found = diagnose(light_model, source, lanes=options, device="cpu", seconds=0.45, images=16)
    assert found.stage == DECODE
    assert {"decoder"} in [set(advice.options) for advice in found.advice]


def test_on_a_cpu_the_copies_are_absent_and_the_report_says_so(light_model, tmp_path):
    source = RiggedSource([photo(40, 30)], 500)
    lines: list[str] = []
    found = diagnose(light_model, source, device="cpu", seconds=0.2, images=16, scratch=tmp_path, report=lines.append)
    document = json.loads(json.dumps(found.to_json()))
    stages = {stage["name"]: stage for stage in document["stages"]}
    assert list(stages) == [LISTING, READ, DECODE, UPLOAD, INFER, DOWNLOAD, ROWS, SINK]
    assert "runs on the CPU" in stages[UPLOAD]["absent"]
    assert "runs on the CPU" in stages[DOWNLOAD]["absent"]
    assert all(stages[name]["cpu_ms_per_sample"] > 0 for name in (READ, DECODE, INFER, ROWS, SINK))
    assert document["settings"]["engine"] == "onnxruntime:CPUExecutionProvider"
    assert "1 of the samples could not be read" in " ".join(document["notes"])
    assert len(lines) == 3
    text = text_of(found)
    assert text.startswith(found.verdict)
    assert "host-to-device: the engine runs on the CPU" in text
    assert "engine onnxruntime:CPUExecutionProvider" in text
    assert all(f"note: {note}" in text for note in found.notes)
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_make_no_sense_are_refused(light_model):
    source = RiggedSource([photo(40, 30)], 5)
    for words in ({"images": 0}, {"seconds": 0.0}, {"seconds": float("nan")}):
        with pytest.raises(UsageError, match="images >= 1 and seconds > 0"):
            diagnose(light_model, source, device="cpu", **words)


def test_a_source_of_nothing_usable_and_a_missing_model_are_plain_errors(light_model, tmp_path):
    with pytest.raises(ModelError, match="No model file"):
        diagnose(tmp_path / "none.onnx", RiggedSource([b""], 5), device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputNotFoundError, match="No image could be read"):
        diagnose(light_model, open_source([str(tmp_path / "empty")]), device="cpu", seconds=0.1)
    with pytest.raises(InputNotFoundError, match="None of the first 4 images"):
        diagnose(light_model, RiggedSource([b"<html>"], 5), device="cpu", seconds=0.1)
