from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from vdali.engine.sources.sniff import (
    IMAGE_EXTENSIONS,
    MAX_REASONS,
    SNIFF_BYTES,
    count_not_image,
    extension_of,
    has_image_extension,
    looks_like_image,
    side_reason,
)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "AVIF", "JPEG2000", "PPM", "QOI"])
def test_first_bytes_of_each_format_are_known(name: str):
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 10, 20)).save(file, name)
    assert looks_like_image(file.getvalue()[:SNIFF_BYTES])


@pytest.mark.parametrize(
    "first_bytes",
    [
        b"",
        b"BM is no bitmap, but a text that starts like one",
        b"BM\x00\x10\0\0\0\0\0\0\x36\0\0\0\x29\0\0\0",
        b"P1 is a priority",
        b"P5",
        b"<!DOCTYPE html><html>",
        b"RIFF\x24\x08\x00\x00WAVEfmt ",
        b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom",
        b"PAR1",
        b"\xff\xfea\0b\0",
        b"\x7fELF",
        b"%PDF-1.7",
    ],
)
def test_other_files_are_no_images(first_bytes: bytes):
    assert not looks_like_image(first_bytes)


def test_every_awkward_picture_is_known_by_its_content(shared_data: Path):
    folder = shared_data / "awkward"
    with (folder / "manifest.csv").open(newline="") as file:
        kinds = {row["file"]: row["expected"] for row in csv.DictReader(file)}
    unknown = {name for name in kinds if not looks_like_image((folder / name).read_bytes()[:SNIFF_BYTES])}
    assert {name for name in unknown if kinds[name] == "decode"} == set()


def test_only_the_last_dot_of_a_name_counts():
    assert extension_of(b"shot 2.0 x.JPG") == b"jpg"
    assert extension_of(b"v1.0") == b"0"
    assert extension_of(b"jpg") == b""
    assert has_image_extension(b"a.b.JpEg")
    assert not has_image_extension(b"jpg")
    assert not has_image_extension(b"a.jpg.txt")


def test_extensions_are_those_that_pillow_opens():
    Image.init()
    plugins = {"heic", "heics", "heif", "heifs", "hif", "jxl", "jif"}
    assert {f".{extension}" for extension in IMAGE_EXTENSIONS - plugins} <= set(Image.registered_extensions())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b".hidden.jpg", "hidden"),
        (b".ipynb_checkpoints", "hidden"),
        (b"._1.jpg", "side file"),
        (b".DS_Store", "side file"),
        (b"Thumbs.db", "side file"),
        (b"desktop.ini", "side file"),
        (b"__MACOSX", "side file"),
        (b"@eaDir", "side file"),
        (b"photo.jpg", None),
    ],
)
def test_hidden_and_side_entries_have_a_reason(name: bytes, reason: str | None):
    assert side_reason(name) == reason


def test_what_is_no_image_is_counted_by_extension():
    ignored: Counter[str] = Counter()
    for name in (b"a.txt", b"b.TXT", b"README", b"c.tar.gz"):
        count_not_image(ignored, name)
    assert ignored == {"not an image (.txt)": 2, "not an image (no extension)": 1, "not an image (.gz)": 1}


def test_reasons_stay_few_whatever_the_names():
    ignored: Counter[str] = Counter()
    for number in range(10_000):
        count_not_image(ignored, f"x.{number}".encode())
    assert len(ignored) <= MAX_REASONS + 1
    assert ignored.total() == 10_000
