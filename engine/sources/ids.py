r"""Ids: valid UTF-8 text for any path, and the way back to its bytes.

A backslash is doubled and each byte that is not UTF-8 becomes ``\xNN``; all else stays as it is. A
member of a shard is ``SHARD::MEMBER``, split at the first ``::``.
"""

from __future__ import annotations

import os
import re

from ..errors import UsageError

SEPARATOR = "::"

_ESCAPE = re.compile(rb"\\(\\|x[0-9a-f]{2}|)")


def id_from_bytes(raw: bytes) -> str:
    """Id of a path given as bytes; ``bytes_from_id`` is its exact inverse."""
    return raw.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


def bytes_from_id(sample_id: str) -> bytes:
    """Bytes that an id names; raises UsageError for text that ``id_from_bytes`` never gives."""
    try:
        return _ESCAPE.sub(_unescaped, sample_id.encode())
    except ValueError as error:
        raise UsageError(
            f"Not an id: {sample_id!r} ({error}). In an id a backslash is doubled or starts \\xNN; "
            "take ids as the output holds them."
        ) from error


def member_id(shard: bytes, member: bytes) -> str:
    r"""Id of one member of a shard.

    Where the shard's own name holds ``::`` or ends in ``:``, its colons are written ``\x3a``, so
    that the first ``::`` is always the border.
    """
    name = id_from_bytes(shard)
    if SEPARATOR in name or name.endswith(":"):
        name = name.replace(":", "\\x3a")
    return f"{name}{SEPARATOR}{id_from_bytes(member)}"


def split_member_id(sample_id: str) -> tuple[bytes, bytes]:
    """Shard and member that ``member_id`` joined; raises UsageError when there is no ``::``."""
    shard, separator, member = sample_id.partition(SEPARATOR)
    if not separator:
        raise UsageError(f"Not a member of a shard: {sample_id!r} holds no '{SEPARATOR}'.")
    return bytes_from_id(shard), bytes_from_id(member)


def shown(path: bytes | str | os.PathLike[str]) -> str:
    """Path as messages show it: valid UTF-8, whatever the file's name."""
    return id_from_bytes(os.fsencode(path))


def _unescaped(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if not escape:
        raise ValueError(f"a lone backslash at byte {match.start()}")
    return b"\\" if escape == b"\\" else bytes.fromhex(escape[1:].decode())
