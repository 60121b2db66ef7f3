"""What a sink is: the durable end of a run, and the memory of what is already done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..batch import Failure, Rows, Sample


class Sink(Protocol):
    """Takes rows and failures, keeps each once, survives a kill at any moment. Used from one thread.

    What is done is what committed part files hold; nothing else is believed.
    """

    def is_done(self, entry: Sample | Failure) -> bool:
        """Whether an earlier session of the run has committed this entry.

        Ask once per entry, in the source's order: failures of kind DUPLICATE_ID are told apart by
        their count.
        """
        ...

    def write(self, rows: Rows, failures: Sequence[Failure]) -> None:
        """Take the outcome of one batch; commits a part when enough has come together.

        The arrays of ``rows`` belong to the sink from then on: the caller must not change them.
        """
        ...

    def commit(self) -> None:
        """Make everything written so far durable (part files: temporary name, fsync, rename)."""
        ...

    def close(self) -> None:
        """Let go of everything that was not committed."""
        ...
