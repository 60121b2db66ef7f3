"""What an entry is, by its name or by its first bytes; nothing here opens or decodes a file."""

from __future__ import annotations

import re
from collections import Counter

from .ids import id_from_bytes

IMAGE_EXTENSIONS = (
    frozenset(["jpg", "jpeg", "jpe", "jif", "jfif", "mpo", "png", "apng", "webp", "gif", "bmp", "dib"])
    | {"tif", "tiff", "avif", "avifs", "heic", "heics", "heif", "heifs", "hif", "jxl", "jp2"}
    | {"j2k", "j2c", "jpc", "jpf", "jpx", "ppm", "pgm", "pbm", "pnm", "ico", "tga", "qoi"}
)
"""Extensions, without dot and in lower case, of what the decoders read (Pillow, pillow-heif, pillow-jxl)."""

SNIFF_BYTES = 32
"""How many first bytes ``looks_like_image`` needs."""

SIDE_FILES = frozenset([b"thumbs.db", b"ehthumbs.db", b"desktop.ini", b"icon\r"])
SIDE_FOLDERS = frozenset([b"__macosx", b"@eadir", b"#recycle", b"$recycle.bin", b"system volume information"])
"""Names, in lower case, of what Windows, macOS and Synology leave beside pictures, thumbnails included."""

MAX_REASONS = 48
"""Different reasons that one source counts; extensions beyond that share one."""

_EXTENSIONS = frozenset(extension.encode() for extension in IMAGE_EXTENSIONS)
_SIDE_NAMES = SIDE_FILES | SIDE_FOLDERS
_PLAIN_EXTENSION = re.compile(rb"[^\x00-\x20/]{1,12}")
_ISO_BRANDS = frozenset(
    [
        b"avif",
        b"avis",
        b"heic",
        b"heix",
        b"heim",
        b"heis",
        b"hevc",
        b"hevx",
        b"hevm",
        b"hevs",
        b"mif1",
        b"mif2",
        b"msf1",
    ]
)
_BMP_HEADER_SIZES = frozenset([12, 16, 40, 52, 56, 64, 108, 124])
_MAGIC = (
    b"\xff\xd8\xff",  # JPEG
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",  # TIFF, and BigTIFF below
    b"MM\0*",
    b"II+\0",
    b"MM\0+",
    b"\xff\x0a",  # JPEG XL codestream, then its container
    b"\0\0\0\x0cJXL \r\n\x87\n",
    b"\0\0\0\x0cjP  \r\n\x87\n",  # JPEG 2000 file, then its codestream
    b"\xff\x4f\xff\x51",
    b"qoif",
)
_NETPBM = re.compile(rb"P[1-6]\s+(?:#|\d)")


def extension_of(name: bytes) -> bytes:
    """Extension of a name or path, in lower case without its dot; empty where there is none."""
    dot = name.rfind(b".")
    return name[dot + 1 :].lower() if dot > name.rfind(b"/") else b""


def has_image_extension(name: bytes) -> bool:
    return extension_of(name) in _EXTENSIONS


def looks_like_image(first_bytes: bytes) -> bool:
    """Whether a file that starts with these bytes (SNIFF_BYTES of them, or all) is a picture."""
    if first_bytes.startswith(_MAGIC):
        return True
    if first_bytes[4:8] == b"ftyp":
        return first_bytes[8:12] in _ISO_BRANDS
    if first_bytes[:4] == b"RIFF":
        return first_bytes[8:12] == b"WEBP"
    if first_bytes[:2] == b"BM":
        # two letters are no proof: the reserved field is zero and the next header's size is a known one
        return first_bytes[6:10] == b"\0\0\0\0" and int.from_bytes(first_bytes[14:18], "little") in _BMP_HEADER_SIZES
    return _NETPBM.match(first_bytes) is not None


def side_reason(name: bytes) -> str | None:
    """Why an entry of this name is passed over unseen: hidden, or left by another program; else None."""
    if name[:1] == b".":
        return "side file" if name[:2] == b"._" or name == b".DS_Store" else "hidden"
    if name.lower() in _SIDE_NAMES:
        return "side file"
    return None


def count_not_image(ignored: Counter[str], name: bytes) -> None:
    """Count an entry that is no image under its extension, so that "nothing found" can say what was seen."""
    extension = extension_of(name)
    if not extension:
        reason = "not an image (no extension)"
    elif _PLAIN_EXTENSION.fullmatch(extension):
        reason = f"not an image (.{id_from_bytes(extension)})"
    else:
        reason = "not an image (other extensions)"
    if reason not in ignored and len(ignored) >= MAX_REASONS:
        reason = "not an image (other extensions)"
    ignored[reason] += 1
