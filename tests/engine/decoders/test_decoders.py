"""What holds for every decoder: outcomes, fidelity, order, isolation."""

from __future__ import annotations

import csv
import resource
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from decoding import ALL_DECODERS, POISON, SPECS, decode, encode, mean_difference, orientation_exif, photo, stored_as
from PIL import Image
from vdali.engine.batch import Encoded
from vdali.engine.decoders.interface import DecodeMode, DecodeOptions, Truncated
from vdali.engine.decoders.make import DecoderName, make_decoder
from vdali.engine.preprocess import Exif, Preprocess

PILLOW = DecoderName.PILLOW
JXL = "cropped_traffic_light.jxl"

decoders = pytest.mark.parametrize("name", ALL_DECODERS)


@pytest.fixture(scope="module")
def awkward(shared_data) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in sorted((shared_data / "awkward").iterdir()) if path.suffix != ".csv"
    }


@pytest.fixture(scope="module")
def photos(shared_data) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((shared_data / "photos").rglob("*.jpg"))}


def wanted_outcome(row: dict[str, str], truncated: Truncated) -> set[str]:
    """What may become of a file of the manifest: ``row``, ``salvaged`` or kinds of failure."""
    expected = row["expected"]
    if expected == "decode" or expected.startswith("damaged: Pillow decodes") or row["file"] == JXL:
        return {"row"}
    if row["file"] == "ultrahdr.jpg":  # of its 4 million pixels 88 are there: no picture to salvage
        return {"truncated"}
    if expected.startswith("damaged"):
        return {"salvaged"} if truncated is Truncated.SALVAGE else {"truncated", "corrupt"}
    return {
        "reject": {"empty", "not_an_image", "corrupt"},
        "bomb: reject by size limit": {"too_large"},
        "special decoder needed": {"unsupported"},
    }[expected]


@decoders
@pytest.mark.parametrize("truncated", Truncated)
def test_every_awkward_file_ends_as_its_manifest_says(shared_data, awkward, name, truncated):
    pytest.importorskip("pillow_jxl")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batch = decode(name, SPECS["shorter bilinear"], awkward, truncated=truncated)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    outcomes = {d.id: "salvaged" if d.salvaged else "row" for d in batch.decoded}
    outcomes |= {f.id: f.kind for f in batch.failures}
    assert len(batch.decoded) + len(batch.failures) == len(awkward) == len(outcomes)
    with (shared_data / "awkward" / "manifest.csv").open() as file:
        for row in csv.DictReader(file):
            assert outcomes[row["file"]] in wanted_outcome(row, truncated), row["file"]
    assert all(f.stage == "decode" and not f.retryable and len(f.message) > 15 for f in batch.failures)
    assert grown_mib < 400


@pytest.mark.parametrize("truncated", Truncated)
def test_decoders_agree_on_every_awkward_file(awkward, truncated):
    reference = decode(PILLOW, SPECS["shorter bilinear"], awkward, truncated=truncated)
    for name in ALL_DECODERS[1:]:
        batch = decode(name, SPECS["shorter bilinear"], awkward, truncated=truncated)
        assert [(f.id, f.kind) for f in batch.failures] == [(f.id, f.kind) for f in reference.failures]
        found = [(d.id, d.width, d.height, d.salvaged) for d in batch.decoded]
        assert found == [(d.id, d.width, d.height, d.salvaged) for d in reference.decoded]
        for row, decoded in enumerate(batch.decoded):
            assert mean_difference(batch.pixels[row], reference.pixels[row]) <= 0.5, decoded.id


@pytest.mark.parametrize("spec_name", [name for name in SPECS if name != "shorter bilinear"])
def test_every_file_stays_within_half_a_level_of_pillow(awkward, photos, spec_name):
    spec = SPECS[spec_name]
    files = awkward if spec_name.startswith(("squash", "shorter")) else {**awkward, **dict(list(photos.items())[::8])}
    reference = decode(PILLOW, spec, files)
    for name in ALL_DECODERS[1:]:
        batch = decode(name, spec, files, mode=DecodeMode.FAST)
        assert [d.id for d in batch.decoded] == [d.id for d in reference.decoded]
        for row, decoded in enumerate(batch.decoded):
            assert mean_difference(batch.pixels[row], reference.pixels[row]) <= 0.5, (decoded.id, name)


def test_all_photos_stay_within_half_a_level_of_pillow(photos):
    spec = SPECS["shorter bilinear"]
    reference = decode(PILLOW, spec, photos)
    assert len(reference.decoded) == len(photos) == 47
    for name in ALL_DECODERS[1:]:
        batch = decode(name, spec, photos, mode=DecodeMode.FAST)
        assert {d.decoder for d in batch.decoded} == {name.value}
        for row, decoded in enumerate(batch.decoded):
            assert mean_difference(batch.pixels[row], reference.pixels[row]) <= 0.5, (decoded.id, name)


@decoders
def test_eight_orientations_of_one_picture_are_one_picture(name):
    upright = photo(400, 300)
    files = [encode(stored_as(upright, o), quality=98, subsampling=0, exif=orientation_exif(o)) for o in range(1, 9)]
    spec = SPECS["shorter bilinear"]
    applied = decode(name, spec, files)
    assert [(d.width, d.height) for d in applied.decoded] == [(400, 300)] * 8
    first = applied.pixels[0].astype(float).ravel()
    for pixels in applied.pixels[1:]:
        other = pixels.astype(float).ravel()
        assert first @ other / np.linalg.norm(first) / np.linalg.norm(other) >= 0.9999
        assert np.abs(first - other).mean() < 2
    ignoring = Preprocess(spec.size, spec.resize, exif=Exif.IGNORE)
    ignored = decode(name, ignoring, files)
    plain = decode(PILLOW, spec, [encode(stored_as(upright, o), quality=98, subsampling=0) for o in range(1, 9)])
    for row in range(8):
        assert mean_difference(ignored.pixels[row], plain.pixels[row]) <= 0.5


@decoders
def test_the_eight_rotation_photos_are_upright(awkward, name):
    files = {f"{o}": awkward[f"rotation_{o}.jpg"] for o in range(1, 9)}
    pixels = decode(name, SPECS["shorter bilinear"], files).pixels.astype(float).reshape(8, -1)
    unit = pixels / np.linalg.norm(pixels, axis=1, keepdims=True)
    assert (unit @ unit.T).min() > 0.97  # 308x410 and 308x231 pixels: not quite one picture


@decoders
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF"])
def test_red_is_channel_0_and_blue_is_channel_2(name, kind):
    files = [encode(Image.new("RGB", (70, 50), colour), kind) for colour in ((250, 10, 10), (10, 10, 250))]
    red, blue = decode(name, SPECS["shorter bilinear"], files).pixels
    assert red[..., 0].min() > 235
    assert red[..., 1:].max() < 25
    assert blue[..., 2].min() > 235
    assert blue[..., :2].max() < 25


@decoders
def test_a_16_bit_ramp_keeps_its_levels(name):
    ramp = Image.fromarray(np.arange(65536, dtype=np.uint16).reshape(256, 256))
    pixels = decode(name, Preprocess((256, 256), (256, 256)), [encode(ramp, "PNG"), encode(ramp, "TIFF")]).pixels
    for row in pixels:
        assert 125 <= row.mean() <= 130
        assert len(np.unique(row)) >= 250


BAD = {
    "cut": encode(photo(200, 150))[:3000],
    "empty": b"",
    "html": b"<!doctype html><title>404</title>",
    "header only": encode(photo(200, 150))[:400],
    "cut png": encode(photo(200, 150), "PNG")[:5000],
}


@decoders
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_first_last_or_alone_costs_no_other(name, kind):
    spec = SPECS["shorter bilinear"]
    good = {f"good {i}": encode(photo(180 + i, 150, seed=i), "PNG" if i == 1 else "JPEG") for i in range(3)}
    wanted = decode(name, spec, good).pixels
    for position in (0, 1, 3):
        files = dict([*list(good.items())[:position], ("bad", BAD[kind]), *list(good.items())[position:]])
        batch = decode(name, spec, files)
        assert [d.id for d in batch.decoded] == list(good)
        assert [f.id for f in batch.failures] == ["bad"]
        assert np.array_equal(batch.pixels, wanted)
    alone = decode(name, spec, {"bad": BAD[kind]})
    assert (len(alone.decoded), len(alone.failures), alone.pixels.shape) == (0, 1, (0, *spec.size, 3))


@decoders
def test_a_batch_of_nothing_but_bad_files_and_an_empty_batch_are_no_trouble(name):
    spec = SPECS["shorter bilinear"]
    batch = decode(name, spec, BAD)
    assert [f.id for f in batch.failures] == list(BAD)
    assert batch.decoded == []
    empty = decode(name, spec, {})
    assert (empty.decoded, empty.failures, len(empty.pixels)) == ([], [], 0)


@decoders
def test_rows_are_the_callers_memory_and_nothing_past_them_is_touched(name):
    spec = SPECS["longest center"]
    out = np.full((5, *spec.size, 3), POISON, np.uint8)
    decoder = make_decoder(name, spec, DecodeOptions(), max_batch=5)
    samples = [Encoded("a", encode(photo(90, 60))), Encoded("b", b"no"), Encoded("c", encode(photo(60, 90), "PNG"))]
    batch = decoder.decode(samples, out)
    decoder.close()
    assert [d.id for d in batch.decoded] == ["a", "c"]
    assert batch.pixels.base is out
    assert batch.pixels.shape == (2, *spec.size, 3)
    assert (out[2:] == POISON).all()
    assert np.array_equal(batch.pixels[0, 0, 0], spec.fill)
    assert np.array_equal(batch.pixels[1, 0, 0], spec.fill)


@pytest.mark.parametrize("spec_name", SPECS)
def test_tiny_and_extreme_pictures_decode_everywhere(spec_name):
    files = {}
    for width, height in ((1, 1), (1, 5000), (5000, 1), (2, 3), (9, 7), (40, 33)):
        image = photo(max(8, width), max(8, height)).resize((width, height))
        files[f"{width}x{height} jpeg"] = encode(image)
        files[f"{width}x{height} turned"] = encode(image, exif=orientation_exif(6))
        files[f"{width}x{height} png"] = encode(image, "PNG")
    reference = decode(PILLOW, SPECS[spec_name], files)
    assert len(reference.decoded) == len(files)
    for name in ALL_DECODERS[1:]:
        batch = decode(name, SPECS[spec_name], files)
        for row, decoded in enumerate(batch.decoded):
            assert mean_difference(batch.pixels[row], reference.pixels[row]) <= 0.5, (decoded.id, name)


@decoders
def test_lanes_side_by_side_give_what_one_lane_gives(name):
    spec = SPECS["shorter bicubic"]
    files = [encode(photo(120 + 9 * i, 100, seed=i), "PNG" if i % 5 == 0 else "JPEG") for i in range(24)]
    wanted = decode(name, spec, files).pixels
    with ThreadPoolExecutor(3) as pool:
        for batch in pool.map(lambda _: decode(name, spec, files), range(6)):
            assert np.array_equal(batch.pixels, wanted)


@decoders
def test_the_pixel_cap_is_the_callers(name):
    files = [encode(photo(100, 80)), encode(photo(100, 80), "PNG"), encode(photo(50, 40))]
    batch = decode(name, SPECS["shorter bilinear"], files, max_pixels=7999)
    assert [f.kind for f in batch.failures] == ["too_large"] * 2
    assert [d.id for d in batch.decoded] == ["2"]
    assert "--max-pixels" in batch.failures[0].message
