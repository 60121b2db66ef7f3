"""The general decode: one rule for each kind of pixel, and a kind for each way to fail."""

from __future__ import annotations

import csv
import io
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from decoding import encode, orientation_exif, photo, stored_as
from PIL import Image, ImageCms, ImageFile, ImageOps
from vdali.engine.decoders.formats import silence_pillow
from vdali.engine.decoders.interface import DecodeOptions, Truncated
from vdali.engine.decoders.picture import Picture, rgb_from_bytes
from vdali.engine.errors import DecodeError
from vdali.engine.preprocess import Exif

SALVAGE = DecodeOptions(truncated=Truncated.SALVAGE)


@pytest.fixture(autouse=True)
def _silent_pillow():
    silence_pillow()


def rgb(data: bytes, exif: Exif = Exif.APPLY) -> np.ndarray:
    picture = rgb_from_bytes(data, DecodeOptions(), exif)
    assert not picture.salvaged
    assert picture.image.mode == "RGB"
    return np.asarray(picture.image)


def failure(data: bytes, options: DecodeOptions | None = None) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        rgb_from_bytes(data, options or DecodeOptions(), Exif.APPLY)
    assert len(str(caught.value)) > 10
    return caught.value


def test_the_mean_colour_of_every_awkward_file_is_the_manifests(shared_data):
    with (shared_data / "awkward" / "manifest.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["pillow_rgb_mean"]]
    for row in rows:
        found = rgb((shared_data / "awkward" / row["file"]).read_bytes())
        assert found.shape[1::-1] == tuple(int(side) for side in row["upright_size"].split("x")), row["file"]
        if row["mode"] != "I;16":  # Pillow clips 16-bit grey at 255
            wanted = [float(level) for level in row["pillow_rgb_mean"].split()]
            assert np.allclose(found.mean(axis=(0, 1)), wanted, atol=0.06), row["file"]
    assert len(rows) > 45


def test_alpha_is_dropped_not_composited():
    colours = photo(40, 30)
    with_alpha = colours.copy()
    with_alpha.putalpha(Image.linear_gradient("L").resize((40, 30)))
    assert np.array_equal(rgb(encode(with_alpha, "PNG")), np.asarray(colours))
    grey = colours.convert("L")
    with_alpha = Image.merge("LA", (grey, Image.linear_gradient("L").resize((40, 30))))
    assert np.array_equal(rgb(encode(with_alpha, "PNG")), np.asarray(grey.convert("RGB")))


@pytest.mark.parametrize("transparency", [None, 3, bytes([0, 128, 255] * 20)])
def test_a_palette_is_expanded_whatever_its_transparency(transparency):
    image = photo(40, 30).quantize(60)
    options = {} if transparency is None else {"transparency": transparency}
    assert np.array_equal(rgb(encode(image, "PNG", **options)), np.asarray(image.convert("RGB")))


def test_transparency_of_grey_and_colour_is_dropped():
    for image, transparency in ((photo(40, 30), (9, 9, 9)), (photo(40, 30).convert("L"), 7)):
        wanted = np.asarray(image.convert("RGB"))
        assert np.array_equal(rgb(encode(image, "PNG", transparency=transparency)), wanted)


def test_bilevel_and_grey_are_expanded():
    for mode in ("1", "L"):
        image = photo(40, 30).convert(mode)
        assert np.array_equal(rgb(encode(image, "PNG")), np.asarray(image.convert("RGB")))


def test_cmyk_ycbcr_and_lab_are_converted_as_pillow_does():
    cmyk = photo(40, 30).convert("CMYK")
    assert np.array_equal(rgb(encode(cmyk, "TIFF")), np.asarray(cmyk.convert("RGB")))
    jpeg = encode(cmyk, "JPEG")
    assert np.array_equal(rgb(jpeg), np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")))
    to_lab = ImageCms.buildTransform(ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB")
    lab = ImageCms.applyTransform(photo(40, 30), to_lab)
    assert np.abs(rgb(encode(lab, "TIFF")).astype(int) - np.asarray(photo(40, 30))).mean() < 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG2000"])
def test_16_bit_grey_is_scaled_where_pillow_would_clip(kind):
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    options = {"irreversible": False} if kind == "JPEG2000" else {}
    found = rgb(encode(Image.fromarray(ramp), kind, **options))
    assert np.array_equal(found[..., 0], np.round(ramp / 257).astype(np.uint8))
    assert 125 <= found.mean() <= 130
    assert np.array_equal(found[..., 0], found[..., 2])


def test_16_bit_pgm_is_scaled_too():
    ramp = np.arange(0, 65536, 16, dtype=">u2").reshape(64, 64)
    found = rgb(b"P5 64 64 65535\n" + ramp.tobytes())
    assert np.array_equal(found[..., 1], np.round(ramp / 257).astype(np.uint8))


@pytest.mark.parametrize(
    "data",
    [
        encode(Image.fromarray(np.arange(12, dtype=np.int32).reshape(3, 4)), "TIFF"),
        encode(Image.fromarray(np.ones((3, 4), np.float32)), "TIFF"),
        b"Pf 4 3 -1.0\n" + bytes(48),
    ],
)
def test_pixels_without_an_agreed_white_are_refused(data):
    assert failure(data).kind == "unsupported"


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "AVIF", "MPO"])
def test_the_first_frame_is_taken(kind):
    frames = [Image.new("RGB", (32, 24), colour) for colour in ((200, 30, 30), (30, 200, 30), (30, 30, 200))]
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:])
    assert np.allclose(rgb(data).mean(axis=(0, 1)), (200, 30, 30), atol=3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "JXL"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_format_is_turned_once(kind, orientation):
    if kind == "JXL":
        pytest.importorskip("pillow_jxl")
    upright = photo(48, 32)
    data = encode(stored_as(upright, orientation), kind, exif=orientation_exif(orientation).tobytes())
    found = rgb(data)
    assert found.shape == (32, 48, 3)
    assert np.abs(found.astype(int) - np.asarray(upright)).mean() < 12
    loaded = Image.open(io.BytesIO(data))
    assert np.array_equal(found, np.asarray(ImageOps.exif_transpose(loaded).convert("RGB")))
    if kind != "TIFF":
        assert np.array_equal(rgb(data, Exif.IGNORE), np.asarray(loaded.convert("RGB")))


def test_heic_is_read_through_its_extra(monkeypatch):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    data = encode(photo(64, 48), "HEIF", quality=95)
    assert np.abs(rgb(data).astype(int) - np.asarray(photo(64, 48))).mean() < 10
    monkeypatch.setitem(sys.modules, "pillow_heif.as_plugin", None)
    missing = failure(data)
    assert missing.kind == "unsupported"
    assert "vdali[heif]" in str(missing)


def test_jpeg_xl_is_read_through_its_extra(shared_data, monkeypatch):
    pytest.importorskip("pillow_jxl")
    data = (shared_data / "awkward" / "cropped_traffic_light.jxl").read_bytes()
    assert rgb(data).shape == (80, 50, 3)
    monkeypatch.setitem(sys.modules, "pillow_jxl.JpegXLImagePlugin", None)
    missing = failure(data)
    assert missing.kind == "unsupported"
    assert "vdali[jxl]" in str(missing)


@pytest.mark.parametrize(
    "data",
    [
        b"hello, this is a text file\n",
        b"<!doctype html><html></html>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
        b"%PDF-1.4\n",
        b"\xd7\xcd\xc6\x9a" + bytes(60),
        bytes(500),
        b"\0\0\0\x18ftypisom\0\0\0\0isomiso2" + bytes(100),
        encode(photo(40, 30), "TGA"),
    ],
)
def test_other_bytes_are_not_an_image_and_no_exotic_reader_runs(data):
    assert failure(data).kind == "not_an_image"


def test_no_bytes_are_a_kind_of_their_own():
    assert failure(b"").kind == "empty"


def test_the_cap_holds_for_every_format_before_it_decodes():
    options = DecodeOptions(max_pixels=40 * 30 - 1)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "PPM", "ICO"):
        data = encode(photo(40, 30), kind, **({"sizes": [(40, 30)]} if kind == "ICO" else {}))
        assert failure(data, options).kind == "too_large", kind
    within = rgb_from_bytes(encode(photo(40, 30)), DecodeOptions(max_pixels=40 * 30), Exif.APPLY)
    assert within.image.size == (40, 30)


def test_a_size_between_pillows_warning_and_its_error_decodes_silently():
    header = b"P4 12000 8000\n"  # 96 megapixels, one bit each
    picture = rgb_from_bytes(header + bytes(12000 * 8000 // 8), DecodeOptions(), Exif.APPLY)
    assert picture.image.size == (12000, 8000)


@pytest.mark.parametrize("kind", ["WEBP", "JXL", "AVIF"])
def test_a_declared_bomb_is_refused_from_its_header_alone(kind):
    data = {
        "WEBP": b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (16000).to_bytes(3, "little") * 2 + bytes(20),
        "JXL": b"\xff\x0a" + (0 | 2 << 1 | 99999 << 3 | 1 << 21).to_bytes(8, "little"),
        "AVIF": b"\0\0\0\x10ftypavif\0\0\0\0" + b"\0\0\0\x14ispe\0\0\0\0" + struct.pack(">II", 60000, 60000),
    }[kind]
    assert failure(data).kind == "too_large"


def salvaged(data: bytes) -> Picture:
    picture = rgb_from_bytes(data, SALVAGE, Exif.APPLY)
    assert picture.salvaged
    return picture


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("BMP", {}),
        ("PPM", {}),
        ("GIF", {"interlace": 0}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_a_cut_picture_fails_or_keeps_its_first_rows(kind, options):
    image = photo(200, 160)
    data = encode(image, kind, **options)
    whole = np.asarray(rgb(data)).astype(int)
    cut = data[: len(data) // 2]
    if kind != "TIFF":  # its directory is at the end: nothing can be found without it
        assert failure(cut).kind == "truncated"
        kept = np.asarray(salvaged(cut).image).astype(int)
        assert kept.shape == whole.shape
        tolerance = 12 if "progressive" in options else 0.01
        first_rows = slice(-30, None) if kind == "BMP" else slice(0, 30)
        assert np.abs(kept[first_rows] - whole[first_rows]).mean() <= tolerance
        assert np.abs(kept - whole).mean() > 1
    assert not rgb_from_bytes(data, SALVAGE, Exif.APPLY).salvaged


def test_cmyk_and_rare_samplings_are_salvaged_like_other_jpegs(shared_data):
    cmyk = encode(photo(200, 160).convert("CMYK"))
    rare = (shared_data / "awkward" / "dali_410.jpg").read_bytes()
    for data in (cmyk, rare):
        whole = rgb(data).astype(int)
        kept = np.asarray(salvaged(data[: len(data) * 2 // 3]).image).astype(int)
        assert np.abs(kept[:40] - whole[:40]).mean() < 0.01


def test_a_file_that_breaks_off_before_its_first_pixel_is_never_a_grey_row():
    jpeg = encode(photo(200, 160))
    scan = jpeg.index(b"\xff\xda") + 14
    png = encode(photo(200, 160), "PNG")
    palette = encode(photo(200, 160).quantize(60), "GIF")
    for data in (
        jpeg[:scan],
        jpeg[: scan + 60],
        jpeg[: scan - 20],
        jpeg[:50],
        png[:60],
        png[:20],
        png[:8],
        palette[:850],
    ):
        assert failure(data, SALVAGE).kind in ("truncated", "corrupt")


@pytest.mark.parametrize("level", [0, 255, 200])
def test_a_picture_of_one_colour_that_lacks_its_end_is_salvaged(level):
    jpeg = encode(Image.new("RGB", (640, 640), (level, level, level)))
    assert np.allclose(np.asarray(salvaged(jpeg[:-10]).image)[:500], level, atol=1)


def test_pillows_globals_are_left_alone():
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    salvaged(encode(photo(200, 160))[:4000])
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == before == (89478485, False)


def test_odd_exif_makes_no_noise_and_no_failure():
    block = b"Exif\0\0II*\0\x08\0\0\0\x02\0" + struct.pack("<HHII", 0x9003, 2, 999999, 50) * 2
    jpeg = encode(photo(60, 40))
    data = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + jpeg[2:]
    assert np.array_equal(rgb(data), np.asarray(Image.open(io.BytesIO(jpeg))))


def test_threads_do_not_meet(shared_data):
    """Strict and lenient decodes side by side: each ends as it does alone."""
    files = [path.read_bytes() for path in sorted((shared_data / "awkward").iterdir()) if path.suffix != ".csv"]

    def outcome(job: tuple[bytes, Truncated]) -> object:
        try:
            picture = rgb_from_bytes(job[0], DecodeOptions(truncated=job[1]), Exif.APPLY)
        except DecodeError as error:
            return error.kind
        return picture.salvaged, picture.image.size, np.asarray(picture.image).sum(dtype=np.int64)

    jobs = [(data, truncated) for data in files for truncated in Truncated]
    alone = [outcome(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(outcome, jobs)) == alone


def test_no_picture_is_opened_by_name(tmp_path: Path):
    """Bytes that begin like a path or a list of files are only bytes."""
    (tmp_path / "a.png").write_bytes(encode(photo(8, 8), "PNG"))
    assert failure(str(tmp_path / "a.png").encode()).kind == "not_an_image"
