"""Headers of JPEG files, read without a library: size, coding, EXIF orientation.

Knows nothing of pixels. A header costs a few microseconds, so it is read for every JPEG before
anything is allocated or decoded.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from ..errors import DecodeError

SOI = b"\xff\xd8"
EOI = b"\xff\xd9"

_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_DCT_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_SCAN = 0xDA
_APP1 = 0xE1
_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
"""Markers without a length: a stuffed zero, TEM, RSTn, SOI, EOI."""

_EXIF = b"Exif\0\0"
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')
_TIFF_HEADS = {b"II*\0": "<", b"II\0*": "<", b"MM\0*": ">", b"MM*\0": ">"}
"""Byte order by TIFF head; the ones with swapped magic are wrong and yet found, Pillow reads them too."""
_ORIENTATION = 0x0112
_ORIENTATION_TYPES = {3: "H", 4: "I"}


class JpegHeader(NamedTuple):
    """What a JPEG's markers say; ``width`` and ``height`` are pixels as stored, before any turn.

    ``frame`` is the second byte of the SOF marker (0xC0 baseline, 0xC2 progressive, ...);
    ``orientation`` is EXIF's, 1..8, and 1 where there is none; ``scan`` is the offset of the first scan's
    marker, -1 where there is no scan.
    """

    width: int
    height: int
    components: int
    precision: int
    frame: int
    orientation: int
    scan: int


def jpeg_header(data: bytes) -> JpegHeader:
    """Walk the markers up to the first scan, as libjpeg and Pillow do (junk between them is skipped).

    Raises DecodeError: ``truncated`` when the data ends before the frame is known, ``corrupt`` when
    there is no frame or its size is zero, ``unsupported`` for what no decoder here can read
    (12 bits, lossless, hierarchical, two components).
    """
    frame: tuple[int, int, int, int, int] | None = None
    exif = xmp = 0
    scan = -1
    position = _next_segment(data, 2)
    while position >= 0:
        marker = data[position + 1]
        following = position + 2 + (data[position + 2] << 8 | data[position + 3])
        if marker == _APP1:
            if not exif and data.startswith(_EXIF, position + 4):
                exif = _exif_orientation(data, position + 10, following)
            elif data.startswith(_XMP, position + 4):
                xmp = _xmp_orientation(data, position + 4, following)
        elif marker in _FRAMES and position + 10 <= following <= len(data):
            high, low, width_high, width_low = data[position + 5 : position + 9]
            frame = (width_high << 8 | width_low, high << 8 | low, data[position + 9], data[position + 4], marker)
        elif marker == _SCAN:
            scan = position
            break
        position = _next_segment(data, following)
    return JpegHeader(*_checked(frame, data), exif or xmp or 1, scan)


def _next_segment(data: bytes, position: int) -> int:
    """Offset of the next marker that has a length, junk and fill bytes skipped; -1 at the end."""
    end = len(data) - 3
    while 0 <= position < end:
        if data[position] != 0xFF:
            position = data.find(b"\xff", position)
        elif (marker := data[position + 1]) == 0xFF:
            position += 1
        elif marker in _BARE:
            position += 2
        else:
            return position
    return -1


def _checked(frame: tuple[int, int, int, int, int] | None, data: bytes) -> tuple[int, int, int, int, int]:
    if frame is None:
        if data.endswith(EOI) or b"\xff\xda" in data:
            raise DecodeError("corrupt", "JPEG without a frame header (SOF marker).")
        raise DecodeError("truncated", f"JPEG ends before its frame header, after {len(data)} bytes.")
    width, height, components, precision, kind = frame
    if kind not in _DCT_FRAMES or precision != 8 or components not in (1, 3, 4):
        raise DecodeError(
            "unsupported",
            f"JPEG with {precision} bits, {components} components, coding SOF{kind - 0xC0}: only 8-bit DCT files "
            "with 1, 3 or 4 components can be read. Convert it to a plain JPEG.",
        )
    if not width or not height:
        raise DecodeError("corrupt", f"JPEG whose header says {width}x{height} pixels.")
    return frame


def _exif_orientation(data: bytes, start: int, end: int) -> int:
    """Orientation of the TIFF structure at ``start``; 0 where there is none or it is not readable."""
    if data.startswith(_EXIF, start):
        start += len(_EXIF)
    order = _TIFF_HEADS.get(data[start : start + 4])
    if order is None:
        return 0
    entry = struct.Struct(order + "HHI")
    limit = min(end, len(data))
    try:
        directory = start + struct.unpack_from(order + "I", data, start + 4)[0]
        (count,) = struct.unpack_from(order + "H", data, directory)
        for position in range(directory + 2, min(directory + 2 + 12 * count, limit - 11), 12):
            tag, kind, values = entry.unpack_from(data, position)
            if tag == _ORIENTATION and values == 1 and kind in _ORIENTATION_TYPES:
                (value,) = struct.unpack_from(order + _ORIENTATION_TYPES[kind], data, position + 8)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        return 0
    return 0


def _xmp_orientation(data: bytes, start: int, end: int) -> int:
    found = _XMP_ORIENTATION.search(data, start, end)
    return int(found[1]) if found else 0
