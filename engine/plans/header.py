"""The first bytes of a TensorRT-RTX plan: all that a machine without a GPU can read of one.

The runtime itself tells nothing without a driver: it returns None for every plan, good or bad. The layout is not
documented. It was read off plans of TensorRT-RTX 1.7.1 and a test holds it against the installed version, but it only
explains what SHA-256 and length have found wrong; no plan is refused for its header alone::

    0  magic "vtrt"     16  uint64 length of the plan     24  version, four bytes
    28 magic again      32  uint32, one bit per compute capability
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER_BYTES = 64
_LAYOUT = struct.Struct("<4s20x4B4sI")
_MAGIC = b"vtrt"
_TARGET_BITS = {0x01: "sm75", 0x02: "sm80", 0x04: "sm86", 0x08: "sm89", 0x10: "sm120", 0x20: "sm121"}


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """What a TensorRT-RTX plan says of itself: the version (``1.7.1``) that built it, and its targets."""

    version: str
    targets: tuple[str, ...]


def read_header(start: bytes) -> PlanHeader | None:
    """Header of a TensorRT-RTX plan from its first bytes; None when they are anything else."""
    if len(start) < HEADER_BYTES:
        return None
    magic, major, minor, patch, _, inner, bits = _LAYOUT.unpack_from(start)
    if magic != _MAGIC or inner != _MAGIC:
        return None
    targets = tuple(name for bit, name in _TARGET_BITS.items() if bits & bit)
    return PlanHeader(f"{major}.{minor}.{patch}", targets)
