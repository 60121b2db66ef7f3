"""DALI: a bad picture costs nothing but itself, and the graph for the GPU is the same graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import vdali
from decoding import SPECS, decode, encode, mean_difference, orientation_exif, photo
from vdali.engine.batch import Encoded
from vdali.engine.decoders.dali import DaliDecoder, decode_graph
from vdali.engine.decoders.interface import DecodeOptions
from vdali.engine.decoders.make import DecoderName
from vdali.engine.preprocess import Exif, Preprocess

DALI, PILLOW = DecoderName.DALI, DecoderName.PILLOW


def refused_by_dali() -> bytes:
    """A JPEG that Pillow reads and DALI does not: junk between two markers."""
    data = encode(photo(100, 80))
    quantization = data.index(b"\xff\xdb")
    return data[:quantization] + b"junk!" + data[quantization:]


def test_jpegs_go_through_dali_and_the_rest_does_not():
    files = [encode(photo(90, 70)), encode(photo(90, 70).convert("L")), encode(photo(90, 70), "PNG")]
    files += [encode(photo(90, 70).convert("CMYK")), refused_by_dali()]
    batch = decode(DALI, SPECS["shorter bilinear"], files)
    assert [d.decoder for d in batch.decoded] == ["dali", "dali", "pillow", "pillow", "pillow"]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turns_crops_and_padding_are_those_of_the_reference(name, orientation):
    files = [encode(photo(*size), exif=orientation_exif(orientation)) for size in ((320, 200), (90, 260), (33, 34))]
    dali, pillow = decode(DALI, SPECS[name], files), decode(PILLOW, SPECS[name], files)
    assert [(d.width, d.height) for d in dali.decoded] == [(d.width, d.height) for d in pillow.decoded]
    assert all(d.decoder == "dali" for d in dali.decoded)
    for row in range(3):
        assert mean_difference(dali.pixels[row], pillow.pixels[row]) <= 0.5


def test_a_lost_batch_does_not_end_the_pipeline():
    spec = SPECS["shorter bilinear"]
    good = [Encoded(str(i), encode(photo(100 + i, 80, seed=i))) for i in range(4)]
    bad = Encoded("bad", refused_by_dali())
    decoder = DaliDecoder(spec, DecodeOptions(), max_batch=5)
    out = np.empty((5, *spec.size, 3), np.uint8)
    wanted = decoder.decode(good, out).pixels.copy()
    for position in (0, 2, 4, 1, 3, 0):
        samples = [*good[:position], bad, *good[position:]]
        batch = decoder.decode(samples, out)
        assert [d.id for d in batch.decoded] == [s.id for s in samples]
        assert np.array_equal(np.delete(batch.pixels, position, axis=0), wanted)
        assert batch.decoded[position].decoder == "pillow"
        assert np.array_equal(decoder.decode(good, out).pixels, wanted)
    decoder.close()


def test_more_samples_than_one_run_holds_are_split():
    files = [encode(photo(60, 50, seed=i)) for i in range(7)]
    spec = SPECS["shorter bilinear"]
    decoder = DaliDecoder(spec, DecodeOptions(), max_batch=3)
    out = np.empty((7, *spec.size, 3), np.uint8)
    batch = decoder.decode([Encoded(str(i), data) for i, data in enumerate(files)], out)
    assert np.array_equal(batch.pixels, decode(DALI, spec, files).pixels)
    decoder.close()


def test_a_picture_too_large_to_hold_a_batch_of_goes_elsewhere():
    files = [encode(photo(64, 48).resize((6000, 5600))), encode(photo(64, 48))]
    batch = decode(DALI, Preprocess((32, 32), (32, 32)), files)
    assert [d.decoder for d in batch.decoded] == ["pillow", "dali"]


@pytest.mark.parametrize("exif", Exif)
@pytest.mark.parametrize("name", ["shorter bilinear", "longest center"])
def test_the_gpu_graph_is_the_cpu_graph_on_another_device(exif, name):
    """Constructed and serialized without a GPU: operators and argument names are checked by DALI."""
    spec = Preprocess(**{**{f: getattr(SPECS[name], f) for f in SPECS[name].__slots__}, "exif": exif})
    graphs = {
        device: decode_graph(device=device, spec=spec, batch_size=4, num_threads=1, device_id=None)
        for device in ("cpu", "mixed")
    }
    serialized = {device: graph.serialize() for device, graph in graphs.items()}
    operators = {device: [operator.name for operator in graph._ops] for device, graph in graphs.items()}
    assert operators["cpu"] == operators["mixed"]
    assert len(operators["cpu"]) > 5
    assert b"mixed" in serialized["mixed"]
    assert b"gpu" in serialized["mixed"]
    assert b"gpu" not in serialized["cpu"]


def test_pipelines_are_made_in_one_module_only():
    root = Path(vdali.__file__).resolve().parent
    makers = [
        path.relative_to(root).as_posix()
        for folder in ("engine", "export", "kernels")  # benchmarks hold a loader as DALI's users write it
        for path in (root / folder).rglob("*.py")
        if "pipeline_def" in (text := path.read_text()) or "dali.Pipeline" in text or "Pipeline(" in text
    ]
    assert makers == ["engine/decoders/dali.py"]
