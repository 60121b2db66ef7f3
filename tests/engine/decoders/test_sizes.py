"""Sizes read from headers without the plugins that would allocate for them."""

from __future__ import annotations

import pytest
from decoding import encode
from PIL import Image
from vdali.engine.decoders.sizes import is_jxl, isobmff_size, jxl_size, webp_size

SIZES = [(1, 1), (8, 8), (256, 256), (255, 256), (64, 48), (300, 1), (3, 600), (96, 54), (513, 400), (160, 128)]


@pytest.mark.parametrize("size", SIZES)
def test_webp(size):
    for mode, options in (("RGB", {}), ("RGB", {"lossless": True}), ("RGBA", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"})):
        assert webp_size(encode(Image.new(mode, size), "WEBP", **options)) == size


@pytest.mark.parametrize("size", SIZES)
def test_jpeg_xl_codestreams_and_containers(size):
    pytest.importorskip("pillow_jxl")
    for container in (False, True):
        data = encode(Image.new("RGB", size, (9, 120, 40)), "JXL", use_container=container)
        assert is_jxl(data)
        assert jxl_size(data) == size


@pytest.mark.parametrize("size", [(16, 16), (200, 31)])
def test_avif(size):
    assert isobmff_size(encode(Image.new("RGB", size), "AVIF")) == size


def test_what_is_cut_has_no_size():
    assert webp_size(b"RIFF\0\0\0\0WEBPVP8 ") is None
    assert webp_size(b"RIFF") is None
    assert isobmff_size(b"\0\0\0\x18ftypavif") is None
    assert jxl_size(b"\0\0\0\x0cJXL \r\n\x87\n") is None
    assert jxl_size(b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(40)) is None
