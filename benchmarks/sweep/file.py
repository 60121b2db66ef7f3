"""The file of a sweep: every finished cell is in it, so that the same command goes on where it was killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...engine.errors import OutputError
from ..bench_file import damage_told, read_bench, write_bench
from ..report.words import heading, shown
from .model import Cell, Series, SeriesNote

KIND = "sweep"
Keys = tuple[str, str, str]


class SweepFile:
    """Cells and notes of a sweep, on disk after every change: one JSON document that `vdali report` draws.

    ``facts`` are the options and what else must be the same for cells to belong together; ``more`` is written beside
    them and not compared. With ``retry_failures`` the failed cells of an earlier session are forgotten.

    Raises OutputError where ``path`` holds another sweep or cannot be written, UsageError where it is no bench file.
    """

    def __init__(
        self, path: Path, facts: Mapping[str, Any], *, more: Mapping[str, Any], retry_failures: bool = False
    ) -> None:
        self._path = path
        self._facts = facts
        self._more = more
        self._cells: list[Cell] = []
        self._notes: dict[Keys, SeriesNote] = {}
        if path.exists():
            self._read(retry_failures=retry_failures)
        self.found = len(self._cells)

    @property
    def notes(self) -> Mapping[Keys, SeriesNote]:
        return self._notes

    def cells_of(self, series: Series) -> list[Cell]:
        """Cells of ``series`` so far, in order of batch size."""
        return sorted((cell for cell in self._cells if cell.series == series.keys), key=lambda cell: cell.batch_size)

    def add(self, cell: Cell, note: SeriesNote | None = None) -> None:
        """Keep a finished cell."""
        self._cells.append(cell)
        if note is not None:
            self._notes[note.series] = note
        self._write(finished=False)

    def finish(
        self,
        *,
        plateaus: Sequence[Cell],
        recommended: Cell | None,
        reason: str,
        attention: Sequence[Mapping[str, Any]],
        notes: Sequence[str],
    ) -> dict[str, Any]:
        """Write the marks and the sentence; returns the whole document."""
        more: dict[str, Any] = {"reason": reason, "notes": list(notes)} | (
            {"attention": attention} if attention else {}
        )
        return self._write(finished=True, plateaus=plateaus, recommended=recommended, more=more)

    def _write(
        self,
        *,
        finished: bool,
        plateaus: Sequence[Cell] = (),
        recommended: Cell | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        document = {
            "kind": KIND,
            **self._more,
            "finished": finished,
            "cells": [self._marked(cell, plateaus, recommended) for cell in self._cells],
            "series": [note.to_json() for note in self._notes.values()],
            **(more or {}),
            "options": dict(self._facts),
        }
        write_bench(self._path, document)
        return document

    def _marked(self, cell: Cell, plateaus: Sequence[Cell], recommended: Cell | None) -> dict[str, Any]:
        marks = {"plateau": True} if cell in plateaus else {}
        return cell.to_json() | marks | ({"recommended": True} if cell is recommended else {})

    def _read(self, *, retry_failures: bool) -> None:
        document = read_bench(self._path)
        if document.get("kind") != KIND or not isinstance(document.get("options"), dict):
            raise OutputError(f"{self._path} is another benchmark's file. Choose another -o, or delete it.")
        differences = _differences(document["options"], self._facts)
        if differences:
            raise OutputError(
                f"{self._path} holds a sweep with other options: {'; '.join(differences)}. Give those, or choose "
                "another -o."
            )
        with damage_told(self._path):
            cells = [Cell.from_json(values) for values in document["cells"]]
            self._cells = [cell for cell in cells if cell.error is None or not retry_failures]
            self._notes = {note.series: note for note in map(SeriesNote.from_json, document["series"])}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, each with both values."""
    names = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    return [f"{heading(n)} {_text(n, before.get(n))}, now {_text(n, now.get(n))}" for n in names]


def _text(name: str, value: Any) -> str:
    return "none" if value is None or value == [] else shown(name, value)
