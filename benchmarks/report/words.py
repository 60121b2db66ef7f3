"""Numbers and keys of JSON files as people read them; the unit is taken from the end of the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

NOTHING = "–"

_WRITTEN = {"cpu": "CPU", "cpus": "CPUs", "gpu": "GPU", "gpus": "GPUs", "rss": "memory"}

_UNITS: list[tuple[str, str]] = [
    ("_samples_per_s", "images/s"),
    ("_ms_per_sample", "ms/image"),
    ("_bytes_per_s", "/s"),
    ("_bytes", ""),
    ("_ms", "ms"),
    ("_s", ""),
    ("_share", ""),
    ("_w", "W"),
    ("_hz", ""),
]


def heading(key: str) -> str:
    """``latency_p99_s`` becomes ``latency p99``, ``cpu_ms_per_sample`` ``CPU, ms/image``."""
    for suffix, unit in _UNITS:
        if key.endswith(suffix) and key != suffix:
            name = _spelled(key.removesuffix(suffix))
            return f"{name}, {unit}" if unit and unit[0].isalpha() else name
    return _spelled(key)


def _spelled(key: str) -> str:
    """Words of a key, abbreviations as they are written."""
    return " ".join(_WRITTEN.get(word, word) for word in key.split("_"))


def shown(key: str, value: Any) -> str:
    """Text of a value; a spread (min, median, max) becomes ``median (min to max)``."""
    if value is None or value == "" or value == []:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return _mapping(key, value)
    if isinstance(value, list | tuple):
        return ", ".join(shown(key, item) for item in value)
    if isinstance(value, int | float):
        return _number(key, float(value))
    return str(value)


def _mapping(key: str, value: Mapping[str, Any]) -> str:
    if set(value) == {"min", "median", "max"}:
        low, median, high = (shown(key, value[name]) for name in ("min", "median", "max"))
        if low == high:
            return median
        return f"{median} ({low} to {high})"
    return ", ".join(f"{heading(str(name))} {shown(str(name), item)}" for name, item in value.items())


def _number(key: str, value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    for suffix, text in _BY_SUFFIX.items():
        if key.endswith(suffix):
            return text(value)
    return number(value)


def number(value: float) -> str:
    """Four significant digits, thousands separated."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def byte_count(value: float) -> str:
    """Bytes in the unit that leaves a small number."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if value / size < 1000 else f"{value / size:,.0f} {unit}"
    return f"{value:,.0f} B"


def seconds(value: float) -> str:
    """Seconds in the unit that leaves a small number: 3.2 ms, 4.1 s, 12 min, 3.4 h."""
    if abs(value) < 1:
        return f"{1e3 * value:.3g} ms"
    if abs(value) < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if abs(value) < 7200 else f"{value / 3600:.3g} h"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def hertz(value: float) -> str:
    return f"{value / 1e6:,.0f} MHz"


_BY_SUFFIX: dict[str, Callable[[float], str]] = {
    "_samples_per_s": number,
    "_ms_per_sample": number,
    "_bytes_per_s": lambda value: f"{byte_count(value)}/s",
    "_bytes": byte_count,
    "_ms": number,
    "_s": seconds,
    "_share": percent,
    "_hz": hertz,
}
