"""One launch of a kernel, ready for any launcher: names, geometry and plain arguments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Argument = int | np.int32 | np.int64
"""A Python int is a device address (64 bits); a NumPy scalar is a number of its own width."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Kernel ``kernel`` over ``grid`` blocks of ``block`` threads, both (x, y, z).

    ``arguments`` are in the kernel's order, as ``cuda.core.launch`` takes them.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]


def blocks_for(threads: int, block: int) -> int:
    """Blocks of ``block`` threads that cover ``threads``; at least one, since an empty grid is an error."""
    return max(1, -(-threads // block))
