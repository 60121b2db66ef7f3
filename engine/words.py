"""Closed choices from words that a user typed."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from .errors import UsageError

Choice = TypeVar("Choice", bound=StrEnum)


def word(choices: type[Choice], value: str, option: str) -> Choice:
    """Member of ``choices`` that ``value`` names; raises UsageError that lists them."""
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(choice.value for choice in choices)
        raise UsageError(f"Unknown {option} '{value}'. Use one of: {known}.") from None
