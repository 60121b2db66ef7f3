"""Rows of list files: plain text, CSV, TSV and JSON lines, each read as a stream."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from ..errors import UsageError
from .columns import ID_COLUMNS, PATH_COLUMNS, id_from_value, no_path_column, path_from_value, pick_column

MAX_LINE_BYTES = 16 << 20
"""Longest line that is taken as one; protects the memory from a file that is no list."""

BOM = b"\xef\xbb\xbf"


class ListRow(NamedTuple):
    """One line: ``path`` as written and the ``id`` it states, or the ``problem`` it has."""

    line: int
    path: bytes = b""
    id: str | None = None
    problem: str | None = None


class Columns(NamedTuple):
    """Columns asked for by the user; None means the usual names."""

    path: str | None
    id: str | None


def text_rows(file: BinaryIO, ignored: Counter[str]) -> Iterator[ListRow]:
    """One path per line; blank lines and lines that start with ``#`` are passed over and counted."""
    for number, line in _lines(file):
        text = line.rstrip(b"\r\n")
        if len(line) > MAX_LINE_BYTES:
            yield ListRow(number, problem=_TOO_LONG)
        elif not text or text.isspace():
            ignored["blank line"] += 1
        elif text.startswith(b"#"):
            ignored["comment"] += 1
        else:
            yield ListRow(number, text)


def json_rows(file: BinaryIO, ignored: Counter[str], columns: Columns) -> Iterator[ListRow]:
    """One JSON object per line."""
    for number, line in _lines(file):
        if len(line) > MAX_LINE_BYTES:
            yield ListRow(number, problem=_TOO_LONG)
        elif line.isspace():
            ignored["blank line"] += 1
        else:
            yield _json_row(number, line, columns)


def csv_rows(
    file: BinaryIO, ignored: Counter[str], columns: Columns, *, delimiter: str, name: str
) -> Iterator[ListRow]:
    """Rows below a header line; raises UsageError when the header lacks a column."""
    lines = (line.decode("utf-8", "surrogateescape") for _, line in _lines(file))
    rows = _cells(lines, delimiter)
    _, header, _ = next(rows, (0, [], None))
    places = csv_places(header, columns, name)
    for line, cells, problem in rows:
        if problem is not None:
            yield ListRow(line, problem=problem)
        elif not cells:
            ignored["blank line"] += 1
        else:
            yield _csv_row(line, cells, places)


def csv_places(header: list[str], columns: Columns, name: str) -> tuple[int, int | None]:
    """Places of the path and the id column; raises UsageError, which names the columns seen."""
    names = [cell.strip() for cell in header]
    path = pick_column(names, columns.path, PATH_COLUMNS, option="--path-column", file=name)
    if path is None:
        raise no_path_column(names, name)
    key = pick_column(names, columns.id, ID_COLUMNS, option="--id-column", file=name)
    return names.index(path), names.index(key) if key is not None else None


_TOO_LONG = f"a line of more than {MAX_LINE_BYTES} bytes"


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1, without the mark at the start of the file; a longer line comes cut."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        rest = line
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES + 1)
        yield number, line.removeprefix(BOM) if number == 1 else line


def _json_row(number: int, line: bytes, columns: Columns) -> ListRow:
    try:
        values = json.loads(line)
        if not isinstance(values, dict):
            return ListRow(number, problem=f"no JSON object, but {values!r:.80}")
        path = pick_column(values, columns.path, PATH_COLUMNS, option="--path-column", file="the line")
        if path is None:
            return ListRow(number, problem=str(no_path_column(values, "the line")))
        key = next((key for key in ([columns.id] if columns.id else ID_COLUMNS) if key in values), None)
        return ListRow(number, path_from_value(values[path]), id_from_value(values[key]) if key else None)
    except RecursionError:
        return ListRow(number, problem="JSON that is nested too deep")
    except (ValueError, UsageError) as error:
        return ListRow(number, problem=f"not usable ({error})")


def _cells(lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str], str | None]]:
    """Number of each row's last line, its cells, and what is wrong with it."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    line = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield reader.line_num, [], f"not readable as CSV from line {line + 1} on ({error})"
        else:
            yield reader.line_num, cells, None
        line = reader.line_num


def _csv_row(line: int, cells: list[str], places: tuple[int, int | None]) -> ListRow:
    path, key = places
    if len(cells) <= max(path, key or 0):
        return ListRow(line, problem=f"{len(cells)} cells, fewer than the header has")
    try:
        return ListRow(line, path_from_value(cells[path]), id_from_value(cells[key]) if key is not None else None)
    except ValueError as error:
        return ListRow(line, problem=str(error))
