"""What a sink is: the durable end of a run, and the memory of what is already done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..batch import Failure, Rows


class Sink(Protocol):
    """Takes rows and failures, keeps each once, survives a kill at any moment.

    What is done is what committed part files hold; nothing else is believed.
    """

    def is_done(self, sample_id: str) -> bool:
        """Whether a committed row or failure of this id exists from an earlier session of the run."""
        ...

    def write(self, rows: Rows, failures: Sequence[Failure]) -> None:
        """Take the outcome of one batch; commits a part when enough has come together."""
        ...

    def commit(self) -> None:
        """Make everything written so far durable (part files: temporary name, fsync, rename)."""
        ...

    def close(self) -> None: ...
