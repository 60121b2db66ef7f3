"""Bounds of downloads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UrlOptions:
    """Bounds of one download: ``deadline_s`` is for all of it, retries and redirects included.

    ``max_redirects`` and ``retries`` count per download; only what may pass by itself is retried.
    """

    deadline_s: float = 30.0
    max_bytes: int = 256 << 20
    max_redirects: int = 5
    retries: int = 2


DEFAULT_URL_OPTIONS = UrlOptions()
