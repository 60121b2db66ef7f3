"""Columns of lists and tables: which one holds paths, which ids, and what their values mean."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import UsageError
from .ids import id_from_bytes

PATH_COLUMNS = ("path", "file_name", "url")
"""Names that hold paths where none is given; the first that exists is taken."""

ID_COLUMNS = ("id", "key", "__key__")
"""Names that hold ids where none is given; the first that exists is taken."""


def pick_column(
    seen: Iterable[str], asked: str | None, usual: tuple[str, ...], *, option: str, file: str
) -> str | None:
    """Column asked for, else the first usual one, else None; raises UsageError when the one asked for is missing."""
    names = list(seen)
    if asked is not None and asked not in names:
        raise UsageError(f"{file} has no column '{asked}'. {columns_seen(names)} Name one of them with {option}.")
    return asked if asked is not None else next((name for name in usual if name in names), None)


def no_path_column(seen: Iterable[str], file: str) -> UsageError:
    usual = "', '".join(PATH_COLUMNS)
    return UsageError(f"{file} has no column '{usual}'. {columns_seen(seen)} Name the one of paths with --path-column.")


def columns_seen(names: Iterable[str]) -> str:
    """Sentence that lists at most 30 columns."""
    listed = [repr(name) for name in names]
    more = f" and {len(listed) - 30} more" if len(listed) > 30 else ""
    return f"Its columns: {', '.join(listed[:30])}{more}." if listed else "It has no columns."


def path_from_value(value: object) -> bytes:
    """Path or URL as bytes; raises ValueError where there is none."""
    if isinstance(value, bytes) and value:
        return value
    if isinstance(value, str) and value:
        return value.encode("utf-8", "surrogateescape")
    raise ValueError("no path" if value in (None, "", b"") else f"a path that is no text, but {value!r:.80}")


def id_from_value(value: object) -> str | None:
    """Id that a column gives, verbatim; None where it is null or empty; raises ValueError for lists and the like.

    Bytes, and text with bytes that are not UTF-8, are escaped as ``id_from_bytes`` does.
    """
    if value is None or value in ("", b""):
        return None
    is_nested = isinstance(value, (list, dict, tuple))
    if is_nested:
        raise ValueError(f"an id that is no text or number, but {value!r:.80}")
    raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return id_from_bytes(raw)
