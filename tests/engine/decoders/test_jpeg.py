"""The JPEG header walk, held against Pillow and against damage."""

from __future__ import annotations

import io
import struct
import warnings

import pytest
from decoding import encode, orientation_exif, photo
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from vdali.engine.decoders.jpeg import jpeg_header
from vdali.engine.errors import DecodeError

PLAIN = encode(photo(60, 40))


def with_segment(marker: int, content: bytes, data: bytes = PLAIN) -> bytes:
    """JPEG with one more segment, right after SOI."""
    return data[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content + data[2:]


def exif_block(order: str, kind: int, value: bytes, *, count: int = 1, tag: int = 0x0112) -> bytes:
    head = {"<": b"II*\0", ">": b"MM\0*"}[order]
    entry = struct.pack(order + "HHI", tag, kind, count) + value.ljust(4, b"\0")
    return b"Exif\0\0" + head + struct.pack(order + "IH", 8, 1) + entry + bytes(4)


def pillow_orientation(data: bytes) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Image.open(io.BytesIO(data)).getexif().get(0x0112, 1)


def test_size_and_orientation_are_pillows_for_every_shared_jpeg(shared_data, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    compared = 0
    for path in sorted(shared_data.rglob("*.jp*g")):
        data = path.read_bytes()
        if not data.startswith(b"\xff\xd8"):
            continue
        try:
            size = Image.open(io.BytesIO(data)).size
        except OSError:
            with pytest.raises(DecodeError):
                jpeg_header(data)
            continue
        header = jpeg_header(data)
        assert ((header.width, header.height), header.orientation) == (size, pillow_orientation(data)), path.name
        compared += 1
    assert compared > 70


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_orientation_that_pillow_wrote_is_read(orientation):
    data = encode(photo(60, 40), exif=orientation_exif(orientation))
    header = jpeg_header(data)
    assert (header.width, header.height, header.components, header.orientation) == (60, 40, 3, orientation)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "letter"), [(3, "H"), (4, "I")])
def test_both_byte_orders_and_both_integer_types_are_read(order, kind, letter):
    data = with_segment(0xE1, exif_block(order, kind, struct.pack(order + letter, 6)))
    assert jpeg_header(data).orientation == 6 == pillow_orientation(data)


@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0",
        b"Exif\0\0II*\0",
        b"Exif\0\0XX*\0" + bytes(40),
        b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(40),
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        exif_block("<", 3, struct.pack("<H", 6))[:-8],
        exif_block("<", 3, struct.pack("<H", 9)),
        exif_block("<", 3, struct.pack("<H", 0)),
        exif_block("<", 2, b"6"),
        exif_block("<", 1, b"\x06"),
        exif_block("<", 3, struct.pack("<HH", 6, 6), count=2),
        exif_block("<", 3, struct.pack("<H", 6), tag=0x0113),
    ],
)
def test_malformed_exif_means_upright(block):
    assert jpeg_header(with_segment(0xE1, block)).orientation == 1


def test_xmp_is_asked_where_exif_is_silent():
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
    data = with_segment(0xE1, xmp)
    assert jpeg_header(data).orientation == 8 == pillow_orientation(data)
    both = with_segment(0xE1, exif_block(">", 3, struct.pack(">H", 3)), data)
    assert jpeg_header(both).orientation == 3 == pillow_orientation(both)


def test_a_thumbnail_inside_exif_is_not_the_picture():
    thumbnail = encode(photo(16, 16))
    assert jpeg_header(with_segment(0xE1, b"Exif\0\0II*\0" + thumbnail)).width == 60


@pytest.mark.parametrize(("options", "frame"), [({}, 0xC0), ({"progressive": True}, 0xC2)])
def test_coding_and_the_first_scan_are_found(options, frame):
    data = encode(photo(60, 40), **options)
    header = jpeg_header(data)
    assert header.frame == frame
    assert data[header.scan : header.scan + 2] == b"\xff\xda"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xff\xd8", "truncated"),
        (b"\xff\xd8\xff\xd9", "corrupt"),
        (PLAIN[:100], "truncated"),
        (b"\xff\xd8" + b"not a jpeg at all" * 9, "truncated"),
        (PLAIN.replace(b"\xff\xc0\0\x11\x08\0\x28", b"\xff\xc0\0\x11\x08\0\0"), "corrupt"),
        (PLAIN.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc1\0\x11\x0c"), "unsupported"),
        (PLAIN.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc3\0\x11\x08"), "unsupported"),
        (PLAIN.replace(b"\x28\0\x3c\x03", b"\x28\0\x3c\x02"), "unsupported"),
    ],
)
def test_headers_that_lead_nowhere_have_a_kind(data, kind):
    with pytest.raises(DecodeError) as caught:
        jpeg_header(data)
    assert caught.value.kind == kind
    assert len(str(caught.value)) > 20


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, len(PLAIN)), st.integers(0, len(PLAIN)))
def test_no_bytes_make_it_raise_anything_else(noise, cut, resume):
    for data in (
        b"\xff\xd8" + noise,
        PLAIN[:cut] + noise + PLAIN[resume:],
        with_segment(0xE1, b"Exif\0\0II*\0" + noise),
    ):
        try:
            header = jpeg_header(data)
        except DecodeError:
            continue
        assert header.width > 0
        assert header.height > 0
        assert 1 <= header.orientation <= 8
