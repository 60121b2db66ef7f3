"""Picture sizes from the first bytes of formats whose Pillow plugins allocate or decode on opening.

The pixel cap must hold before that; every other format tells its size on opening at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass

_JXL_CONTAINER = b"\0\0\0\x0cJXL \r\n\x87\n"
_JXL_CODESTREAM = b"\xff\x0a"
_JXL_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
_ISPE_REACH = 65536


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Canvas (width, height) of a WebP file; None where the header is not whole."""
    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if chunk == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and len(data) >= 30:
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def isobmff_size(data: bytes) -> tuple[int, int] | None:
    """Largest (width, height) that an AVIF or HEIF file declares in its ``ispe`` boxes."""
    sizes = []
    position = data.find(b"ispe", 0, _ISPE_REACH)
    while position >= 0:
        width, height = data[position + 8 : position + 12], data[position + 12 : position + 16]
        sizes.append((int.from_bytes(width, "big"), int.from_bytes(height, "big")))
        position = data.find(b"ispe", position + 4, _ISPE_REACH)
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


def is_jxl(data: bytes) -> bool:
    """Whether the bytes begin as a JPEG XL container or codestream."""
    return data.startswith((_JXL_CONTAINER, _JXL_CODESTREAM))


def jxl_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a JPEG XL file: SizeHeader of ISO/IEC 18181-1, D.2; None where there is none."""
    start = 0 if data.startswith(_JXL_CODESTREAM) else _jxl_codestream(data)
    if start is None or not data.startswith(_JXL_CODESTREAM, start):
        return None
    bits = _Bits(int.from_bytes(data[start + 2 : start + 18], "little"))
    small = bits.take(1)
    height = _jxl_extent(bits, small)
    ratio = bits.take(3)
    if ratio == 0:
        return _jxl_extent(bits, small), height
    numerator, denominator = _JXL_RATIOS[ratio - 1]
    return height * numerator // denominator, height


def _jxl_extent(bits: _Bits, small: int) -> int:
    if small:
        return (bits.take(5) + 1) * 8
    return bits.take((9, 13, 18, 30)[bits.take(2)]) + 1


def _jxl_codestream(data: bytes) -> int | None:
    """Offset of the codestream in a JPEG XL container: the first jxlc or jxlp box."""
    position = 0
    while position + 8 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        head = 8
        if length == 1:
            length = int.from_bytes(data[position + 8 : position + 16], "big")
            head = 16
        if kind == b"jxlc":
            return position + head
        if kind == b"jxlp":
            return position + head + 4
        if length < head:
            return None
        position += length
    return None


@dataclass(slots=True)
class _Bits:
    """Bits of a little-endian number, lowest first."""

    value: int

    def take(self, count: int) -> int:
        taken = self.value & (1 << count) - 1
        self.value >>= count
        return taken
