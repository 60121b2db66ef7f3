"""The loop that decoders share: one sample after the other into the next free row of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..batch import Batch, Decoded, Encoded, Failure
from ..errors import SampleError

DecodeOne = Callable[[Encoded, NDArray[np.uint8]], Decoded]
"""Decodes a sample into a row, uint8 [height, width, 3], or raises SampleError."""


def decode_each(samples: Sequence[Encoded], out: NDArray[np.uint8], decode_one: DecodeOne) -> Batch:
    """Batch of the samples that decode, densely from ``out[0]`` on; the others become its failures."""
    batch = Batch([], out[:0])
    for sample in samples:
        try:
            batch.decoded.append(decode_one(sample, out[len(batch.decoded)]))
        except SampleError as error:
            batch.failures.append(Failure.from_error(sample.id, error))
    batch.pixels = out[: len(batch.decoded)]
    return batch
