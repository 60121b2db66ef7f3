"""Values that flow through the pipeline: samples in, rows and failures out.

Identity travels inside each value; nothing here knows a device, a runtime or a file format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import SampleError

Column = NDArray[Any] | list[Any]

DUPLICATE_ID = "duplicate_id"
"""Kind of the failure that a source yields for an entry whose id it has yielded before.

Such failures share the id of the first occurrence; a sink tells them apart by their number.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One image to infer.

    ``id`` names the bytes for ever (reversible, valid UTF-8); ``read`` returns the encoded bytes
    and raises ReadError. ``read`` is called at most once, on a lane, and must be thread-safe.
    """

    id: str
    read: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sample whose bytes have been read."""

    id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """One sample (or one shard) that ended without a row.

    ``stage`` is source, read, decode, infer or sink.
    """

    id: str
    stage: str
    kind: str
    message: str
    retryable: bool = False

    @classmethod
    def from_error(cls, sample_id: str, error: SampleError) -> Failure:
        return cls(sample_id, error.stage, error.kind, str(error), error.retryable)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What is known of one decoded sample.

    ``width`` and ``height`` are the source's, in pixels, after the EXIF rule; ``decoder`` is what
    really decoded it (turbo, dali, pillow, ...); ``salvaged`` marks a truncated picture.
    """

    id: str
    width: int
    height: int
    decoder: str
    salvaged: bool = False


@dataclass(slots=True)
class Batch:
    """Decoded samples that share one tensor.

    ``pixels`` is uint8 [n, height, width, 3] RGB; ``pixels[i]`` belongs to ``decoded[i]``.
    ``failures`` are the samples of the same batch that did not decode.
    """

    decoded: list[Decoded]
    pixels: NDArray[np.uint8]
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rows:
    """Output lines in columns: ``ids[i]`` belongs to row ``i`` of every column.

    A column is an array [n] or [n, k], or a list of n Python values (bytes, str, None).
    """

    ids: Sequence[str]
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one batch became: together ``rows`` and ``failures`` hold each of its samples once.

    ``decoded_by`` counts the decoders that really decoded its pictures.
    """

    rows: Rows
    failures: Sequence[Failure]
    decoded_by: Mapping[str, int] = field(default_factory=dict)
