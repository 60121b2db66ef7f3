"""Headers of tar archives: POSIX ustar and pax, GNU and V7.

The format is POSIX.1-2017 pax (section "ustar Interchange Format") and the GNU tar manual's "Basic
Tar Format". Python's tarfile is not used since it ends without a word at a cut header, and keeps every
member in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

BLOCK = 512
MAX_EXTENSION_BYTES = 1 << 20
"""Largest pax header or GNU long name believed, in bytes; a larger one is damage."""

Take = Callable[[int, int], bytes]
"""``take(offset, count)``: bytes of the archive, fewer only at its end; offsets never go down."""

_ZERO_BLOCK = bytes(BLOCK)
_REGULAR = frozenset([b"0", b"\0", b"7"])
_LINKS = frozenset([b"1", b"2"])
_WITHOUT_DATA = frozenset([b"1", b"2", b"3", b"4", b"5", b"6"])  # whatever size a header states
_TAIL_BYTES = 1 << 20


class TarError(Exception):
    """Archive that cannot be read on from byte ``offset``."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


class TarCutError(TarError):
    """Archive that ends too early."""


class TarDamagedError(TarError):
    """Archive whose next header is none; at offset 0 it is no tar at all."""


class TarTailError(TarError):
    """Archive with more than zeros behind its end marker."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its data are ``size`` bytes at ``offset``; ``kind`` is file, link, sparse, folder or other.

    ``target`` is the member that a link names, as ``normal_name`` gives it; empty where a link leads
    out of the archive.
    """

    name: bytes
    kind: str
    offset: int
    size: int
    target: bytes = b""


def members(take: Take) -> Iterator[Member]:
    """Members in order; a TarError ends them, after the last one whose header is whole.

    Whether a member's data are whole is for the caller to see. The archive ends at its marker: two
    blocks of zeros, of which one is enough.
    """
    offset = 0
    shared: dict[bytes, bytes] = {}
    extra: dict[bytes, bytes] = {}
    while (block := take(offset, BLOCK)) != _ZERO_BLOCK:
        header = _Header(block, offset)
        data = offset + BLOCK
        size = header.size
        if header.type in b"xgXLK":
            _apply_extension(header.type, _extension(take, data, size), extra, shared, offset)
        else:
            if header.type == b"S":
                data = _end_of_sparse_map(take, block, data)
            if b"size" in extra and header.type not in _WITHOUT_DATA:
                size = _number(extra[b"size"], offset, 10)
            yield _member(header, data, size, {**shared, **extra})
            extra = {}
        offset = data + -(-size // BLOCK) * BLOCK
    _check_tail(take, offset)


def _check_tail(take: Take, offset: int) -> None:
    while tail := take(offset, _TAIL_BYTES):
        if tail.count(0) != len(tail):
            raise TarTailError(offset, "data behind the end-of-archive marker")
        offset += len(tail)


class _Header:
    __slots__ = ("link", "name", "size", "type")

    def __init__(self, block: bytes, offset: int) -> None:
        """Parse a block; raises TarCutError when it is short, TarDamagedError when its checksum is wrong."""
        if len(block) < BLOCK:
            what = "a header is cut" if block else "the end-of-archive marker is missing"
            raise TarCutError(offset + len(block), what)
        expected = _number(block[148:156], offset)
        # the checksum field itself counts as eight spaces
        if expected != sum(block) - sum(block[148:156]) + 256 and expected != _signed_sum(block):
            raise TarDamagedError(offset, "no valid tar header")
        self.type = block[156:157]
        self.size = 0 if self.type in _WITHOUT_DATA else _number(block[124:136], offset)
        self.name = _text(block[:100])
        self.link = _text(block[157:257])
        # GNU's own format (magic "ustar  ") keeps times where POSIX keeps the name's prefix
        prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else b""
        if prefix:
            self.name = prefix + b"/" + self.name


def _signed_sum(block: bytes) -> int:
    """Checksum of old Sun tars, whose bytes are signed."""
    unsigned = block[:148] + block[156:]
    return sum(byte - 256 if byte > 127 else byte for byte in unsigned) + 256


def _member(header: _Header, data: int, size: int, extra: dict[bytes, bytes]) -> Member:
    name = extra.get(b"path", header.name)
    if header.type in _REGULAR:
        if any(key.startswith(b"GNU.sparse.") for key in extra):
            return Member(extra.get(b"GNU.sparse.name", name), "sparse", data, size)
        kind = "folder" if name.endswith(b"/") else "file"  # V7 marks folders by their name alone
        return Member(name, kind, data, size)
    if header.type in _LINKS:
        link = extra.get(b"linkpath", header.link)
        return Member(name, "link", data, size, link_target(name, link, symbolic=header.type == b"2"))
    kind = {b"5": "folder", b"S": "sparse"}.get(header.type, "other")
    return Member(name, kind, data, size)


def normal_name(name: bytes) -> bytes:
    """Name without ``.``, ``..`` and needless slashes; empty where ``..`` leads out of the archive."""
    parts: list[bytes] = []
    for part in name.split(b"/"):
        if part == b"..":
            if not parts:
                return b""
            parts.pop()
        elif part not in (b"", b"."):
            parts.append(part)
    return b"/".join(parts)


def link_target(name: bytes, link: bytes, *, symbolic: bool) -> bytes:
    """Normal name of what a link names: a hard link a member, a symbolic one a path beside itself."""
    if not symbolic:
        return normal_name(link)
    if link.startswith(b"/"):
        return b""
    return normal_name(name.rpartition(b"/")[0] + b"/" + link)


def _extension(take: Take, data: int, size: int) -> bytes:
    if size > MAX_EXTENSION_BYTES:
        raise TarDamagedError(data - BLOCK, f"a name or pax header of {size} bytes")
    value = take(data, size)
    if len(value) < size:
        raise TarCutError(data + len(value), "a name or pax header is cut")
    return value


def _apply_extension(
    kind: bytes, value: bytes, extra: dict[bytes, bytes], shared: dict[bytes, bytes], offset: int
) -> None:
    if kind == b"L":
        extra[b"path"] = _text(value)
    elif kind == b"K":
        extra[b"linkpath"] = _text(value)
    else:
        (shared if kind == b"g" else extra).update(_pax_values(value, offset))


def _pax_values(data: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """Pairs of a pax header: lines of ``LENGTH KEY=VALUE``, where LENGTH counts the line with its newline."""
    position = 0
    while position < len(data) and data[position] != 0:
        digits, space, _ = data[position : position + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        line = data[position : position + length]
        key, equals, value = line[len(digits) + 1 : -1].partition(b"=")
        if not equals or line[-1:] != b"\n":
            raise TarDamagedError(offset, "a pax header that is none")
        yield key, value
        position += length


def _end_of_sparse_map(take: Take, block: bytes, data: int) -> int:
    """Offset behind the blocks that continue an old GNU sparse header."""
    more = block[482]
    while more:
        block = take(data, BLOCK)
        if len(block) < BLOCK:
            raise TarCutError(data + len(block), "a sparse header is cut")
        more = block[504]
        data += BLOCK
    return data


def _number(field: bytes, offset: int, base: int = 8) -> int:
    """Number of a header: octal digits, or GNU's base 256 where the first bit is set."""
    if base == 8 and field[:1] == b"\x80":
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    if digits and not digits.isdigit():
        raise TarDamagedError(offset, "no valid tar header")
    try:
        return int(digits or b"0", base)
    except ValueError as error:
        raise TarDamagedError(offset, "no valid tar header") from error


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
