"""DALI: a bad picture costs nothing but itself, and the graph for the GPU is the same graph."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

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
@pytest.mark.parametrize("name", SPECS)
def test_the_gpu_graph_is_the_cpu_graph_on_another_device(exif, name):
    """Constructed and serialized without a GPU; every operator, argument, input and output, save for the device."""
    spec = dataclasses.replace(SPECS[name], exif=exif)
    cpu, mixed = (
        decode_graph(device=device, spec=spec, batch_size=4, num_threads=1, device_id=None).serialize()
        for device in ("cpu", "mixed")
    )
    operators = [parsed(value) for field, value in fields_of(cpu) if field == OPERATOR]
    on_gpu = [parsed(value) for field, value in fields_of(mixed) if field == OPERATOR]
    assert len(operators) > 5
    assert on_gpu != operators
    assert [on_cpu(operator) for operator in on_gpu] == operators
    devices = {operator[0][1]: dict(arguments_of(operator))["device"] for operator in on_gpu}
    assert devices.pop("ExternalSource") == "cpu"
    assert devices.pop("decoders__Image") == "mixed"
    assert set(devices.values()) == {"gpu"}
    decoder = next(dict(arguments_of(operator)) for operator in on_gpu if operator[0][1] == "decoders__Image")
    assert {"jpeg_fancy_upsampling", "hw_decoder_load", "preallocate_width_hint"} <= decoder.keys()
    outputs = [[parsed(value) for field, value in fields_of(graph) if field == OUTPUT] for graph in (cpu, mixed)]
    assert on_cpu(outputs[1]) == outputs[0]


OPERATOR, OUTPUT, ARGUMENT = 5, 7, 4
"""Numbers of fields in DALI's PipelineDef and OpDef (dali.proto)."""


def fields_of(message: bytes) -> list[tuple[int, int | bytes]]:
    """Fields of a protobuf message by its wire format; raises ValueError or IndexError for what is none."""
    fields: list[tuple[int, int | bytes]] = []
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(message):
        key = number()
        kind = key & 7
        if kind == 0:
            fields.append((key >> 3, number()))
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"no wire type {kind}")
        size = number() if kind == 2 else {1: 8, 5: 4}[kind]
        if position + size > len(message):
            raise ValueError("cut")
        fields.append((key >> 3, message[position : position + size]))
        position += size
    return fields


def parsed(message: bytes) -> Any:
    """Text, or the fields of a message, or bytes that are neither."""
    if message and all(32 <= byte < 127 for byte in message):
        return message.decode()
    try:
        return [(field, parsed(value) if isinstance(value, bytes) else value) for field, value in fields_of(message)]
    except (ValueError, IndexError):
        return message


def on_cpu(tree: Any) -> Any:
    """A parsed message with each name of a device replaced."""
    if isinstance(tree, list):
        return [on_cpu(entry) for entry in tree]
    if isinstance(tree, tuple):
        return tree[0], on_cpu(tree[1])
    return "cpu" if tree in ("mixed", "gpu") else tree


def arguments_of(operator: Any) -> list[tuple[str, Any]]:
    """Name and value of each constant argument: its first field is the name, its third the value."""
    return [(argument[0][1], argument[2][1]) for field, argument in operator if field == ARGUMENT]


def test_pipelines_are_made_in_one_module_only():
    root = Path(vdali.__file__).resolve().parent
    makers = [
        path.relative_to(root).as_posix()
        for folder in ("engine", "export", "kernels")  # benchmarks hold a loader as DALI's users write it
        for path in (root / folder).rglob("*.py")
        if "pipeline_def" in (text := path.read_text()) or "dali.Pipeline" in text or "Pipeline(" in text
    ]
    assert makers == ["engine/decoders/dali.py"]
