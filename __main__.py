"""``python -m vdali``, and the command ``vdali``."""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130


def start() -> None:
    """The command, deaf to nothing from its first moment: Ctrl-C while modules load ends it with a message too."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a job in the background of a script ignores Ctrl-C
        signal.signal(signal.SIGINT, _leave)
    from .cli import main

    signal.signal(signal.SIGINT, before)
    main(prog_name="vdali")


def _leave(*_: object) -> None:
    """End at once: an exception in the middle of an import would be told as a fault of that module."""
    os.write(2, b"vdali: interrupted.\n")
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    start()
