"""How many entries there are in all, counted beside the run so that it need not wait for the listing."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from .errors import VdaliError


class TotalInBackground:
    """Counts ``entries`` on a thread of its own; ``value`` is None until the count is complete."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self.value: int | None = None
        self._entries = entries
        self._stopped = threading.Event()
        threading.Thread(target=self._count, name="total", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _count(self) -> None:
        count = 0
        try:
            for _ in self._entries:
                count += 1
                if self._stopped.is_set():
                    return
        except (OSError, VdaliError):
            return  # the run itself meets the same error and tells it
        self.value = count
