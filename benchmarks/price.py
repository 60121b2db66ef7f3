"""What an hour of a machine costs: from the user, as a number or in a file (``prices.example.toml`` shows one)."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.errors import UsageError

EXAMPLE_PRICES = Path(__file__).with_name("prices.example.toml")
"""An example of a price file: its prices belong to no real machine."""


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one machine for an hour, where that comes from."""

    per_hour: float
    currency: str
    source: str
    notes: tuple[str, ...] = ()


def price_from_file(path: Path, machine: str | None) -> Price:
    """Price of ``machine`` in a TOML or JSON file, which may be left out where the file has one machine only.

    Raises UsageError where the file is not readable, has no such machine, or a price that is not above 0.
    """
    document = _price_document(path)
    machines = document.get("machines")
    if not isinstance(machines, Mapping) or not machines:
        raise UsageError(f"{path} names no machine. Write [machines.NAME] with a price_per_hour.")
    name = machine if machine is not None or len(machines) > 1 else next(iter(machines))
    entry = machines.get(name)
    if not isinstance(entry, Mapping):
        raise UsageError(f"{path} has no machine {name or '(none was named)'}. It has: {', '.join(machines)}.")
    if "price_per_hour" not in entry:
        raise UsageError(f"{path}: machine {name} has no price_per_hour. Write what an hour of it costs.")
    as_of = f" as of {document['as_of']}" if "as_of" in document else ""
    described = f" ({entry['note']})" if "note" in entry else ""
    notes = ("the prices come from an EXAMPLE file: they belong to no real machine",) if document.get("example") else ()
    return Price(
        positive(entry["price_per_hour"], f"price_per_hour of {name} in {path}"),
        str(document.get("currency", "USD")),
        f"{name}{described} in {path}{as_of}",
        notes,
    )


def money(value: float, currency: str) -> str:
    """Amount with at least three significant digits: ``EUR 1,234``, ``EUR 12.30``, ``EUR 0.00417``."""
    if value >= 1000:
        return f"{currency} {value:,.0f}"
    if round(value, 2) >= 1 or round(value, 2) == value:
        return f"{currency} {value:,.2f}"
    return f"{currency} {value:.3g}" if value >= 1e-4 else f"{currency} {value:.2e}"


def positive(value: object, what: str) -> float:
    """``value`` as a number above 0; raises UsageError for anything else, NaN and infinity included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"The {what} must be a number above 0, got {value!r}.")
    return float(value)


def _price_document(path: Path) -> dict[str, Any]:
    load: Callable[[str], Any] = json.loads if path.suffix == ".json" else tomllib.loads
    try:
        document = load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"No price file {path}. Write one: `vdali cost --example-prices` prints an example."
        ) from error
    except (OSError, ValueError) as error:  # both parsers' errors are ValueErrors
        raise UsageError(
            f"The price file {path} is not readable: {error}. It must be TOML, or JSON named .json."
        ) from error
    if not isinstance(document, dict):
        raise UsageError(f"The price file {path} holds {type(document).__name__}, not a table of machines.")
    return document
