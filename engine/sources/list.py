"""A list file: the paths or URLs of images, one per line or row."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from ..batch import Failure, Sample
from ..errors import InputNotFoundError, UsageError
from .files import is_retryable, read_first_bytes, reason_of
from .ids import id_from_bytes, member_id, shown
from .list_rows import Columns, ListRow, csv_rows, json_rows, text_rows
from .location import is_url, reader_of
from .sniff import extension_of
from .url_options import DEFAULT_URL_OPTIONS, UrlOptions

LIST_EXTENSIONS = frozenset([b"txt", b"lst", b"csv", b"tsv", b"jsonl", b"ndjson"])

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class ListSource:
    """Samples that a text, CSV, TSV or JSON lines file names; a file of any other extension is text.

    Relative paths start at the list's folder, or at ``root``. The id is the id column's value, else
    the path as written, after ``prefix`` where it is relative. A row with a column missing is a
    failure, whose id is ``NAME::line N``; a row whose id is empty keeps its path as id.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        id_column: str | None = None,
        path_column: str | None = None,
        root: str | os.PathLike[str] | None = None,
        prefix: bytes = b"",
        url_options: UrlOptions = DEFAULT_URL_OPTIONS,
    ) -> None:
        self.ignored: Counter[str] = Counter()
        self._name = os.fsencode(path)
        self._path = os.path.abspath(self._name)
        self._columns = Columns(path_column, id_column)
        self._root = os.path.abspath(os.fsencode(root)) if root is not None else os.path.dirname(self._path)
        self._prefix = prefix
        self._url_options = url_options

    def describe(self) -> str:
        return f"list {shown(self._name)}"

    def check(self) -> None:
        """Raise InputNotFoundError or UsageError for a list that cannot be read at all."""
        try:
            if read_first_bytes(self._path, 2) in _UTF_16:
                raise UsageError(f"{shown(self._name)} is UTF-16 text. Save it as UTF-8.")
            with open(self._path, "rb") as file:
                next(self._rows(file), None)
        except OSError as error:
            raise InputNotFoundError(
                f"Cannot read the list {shown(self._name)}: {reason_of(error)}. Check the path and its rights."
            ) from error

    def __iter__(self) -> Iterator[Sample | Failure]:
        self.ignored = Counter()
        line = 0
        try:
            with open(self._path, "rb") as file:
                for row in self._rows(file):
                    line = row.line
                    yield self._entry(row)
        except OSError as error:
            message = f"{shown(self._path)}: {reason_of(error)}; lines after {line} are not read"
            yield Failure(id_from_bytes(self._name), "source", "list_unreadable", message, is_retryable(error))

    def _rows(self, file: BinaryIO) -> Iterator[ListRow]:
        extension = extension_of(self._name)
        if extension in (b"jsonl", b"ndjson"):
            return json_rows(file, self.ignored, self._columns)
        if extension in (b"csv", b"tsv"):
            delimiter = "," if extension == b"csv" else "\t"
            return csv_rows(file, self.ignored, self._columns, delimiter=delimiter, name=shown(self._name))
        if self._columns.path is not None or self._columns.id is not None:
            raise UsageError(
                f"{shown(self._name)} is plain text, which has no columns. "
                "Name it .csv, .tsv or .jsonl, or leave out --path-column and --id-column."
            )
        return text_rows(file, self.ignored)

    def _entry(self, row: ListRow) -> Sample | Failure:
        if row.problem is not None:
            return self._malformed(row.line, row.problem)
        try:
            read = reader_of(row.path, self._root, self._url_options)
        except ValueError as error:
            return self._malformed(row.line, str(error))
        return Sample(row.id if row.id is not None else self._path_id(row.path), read)

    def _path_id(self, path: bytes) -> str:
        if self._prefix and not path.startswith(b"/") and not is_url(path):
            return id_from_bytes(self._prefix + path)
        return id_from_bytes(path)

    def _malformed(self, line: int, problem: str) -> Failure:
        sample_id = member_id(self._name, b"line %d" % line)
        message = f"{shown(self._path)}, line {line}: {_printable(problem)}"
        return Failure(sample_id, "source", "malformed_line", message)


def _printable(text: str) -> str:
    """Text without the surrogates that stand for bytes that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
