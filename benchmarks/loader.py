"""Decode and resize alone: how near the loader comes to its floor, and how it scales with lanes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.batch import Encoded
from ..engine.decoders.interface import DecodeOptions, Decoder
from ..engine.decoders.make import DecoderName, make_decoder
from ..engine.preprocess import Preprocess
from .measure import alternate, cpu_ms, rates, ratio

BATCH = 8
SPEC = Preprocess(size=(224, 224), resize=(256, 256))


def measure_loader(files: Sequence[Path], *, rounds: int) -> dict[str, Any]:
    """Rates of simplejpeg's decode alone and of each decoder's decode + resize, in alternation; lanes 1 and 2."""
    import simplejpeg

    samples = [Encoded(path.name, path.read_bytes()) for path in files]
    turbo, dali, pillow = (
        make_decoder(name, SPEC, DecodeOptions(), max_batch=BATCH)
        for name in (DecoderName.TURBO, DecoderName.DALI, DecoderName.PILLOW)
    )
    second = make_decoder(DecoderName.TURBO, SPEC, DecodeOptions(), max_batch=BATCH)
    works = {
        "simplejpeg decode alone": lambda: [simplejpeg.decode_jpeg(sample.data, "RGB") for sample in samples],
        "turbo decode + resize": lambda: _decode_all(turbo, samples),
        "turbo, 2 lanes": lambda: _in_two(turbo, second, samples),
        "dali decode + resize": lambda: _decode_all(dali, samples),
        "pillow decode + resize": lambda: _decode_all(pillow, samples),
    }
    timings = alternate(works, rounds=rounds)
    for decoder in (turbo, dali, pillow, second):
        decoder.close()
    count = len(samples)
    one = [timing.wall_s for timing in timings["turbo decode + resize"]]
    floor = [timing.cpu_s for timing in timings["simplejpeg decode alone"]]
    return {
        "images": count,
        "systems": {
            name: {
                "throughput_samples_per_s": rates(rows, count).to_json(),
                "cpu_ms_per_sample": cpu_ms(rows, count).to_json(),
            }
            for name, rows in timings.items()
        },
        "rate_of_floor": ratio(floor, [timing.cpu_s for timing in timings["turbo decode + resize"]]).to_json(),
        "two_lanes_over_one": ratio(one, [timing.wall_s for timing in timings["turbo, 2 lanes"]]).to_json(),
    }


def _decode_all(decoder: Decoder, samples: Sequence[Encoded]) -> None:
    out = np.empty((BATCH, *SPEC.size, 3), np.uint8)
    for first in range(0, len(samples), BATCH):
        batch = decoder.decode(samples[first : first + BATCH], out)
        if batch.failures:
            raise AssertionError(f"a benchmark photo failed: {batch.failures[0]}")


def _in_two(first: Decoder, second: Decoder, samples: Sequence[Encoded]) -> None:
    halves = ((first, samples[0::2]), (second, samples[1::2]))
    threads = [threading.Thread(target=_decode_all, args=half) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
