"""Which pictures of a batch nvImageCodec can decode: DALI's own decoders, asked one picture at a time.

DALI loses a whole batch for one bad picture and names at most the first; this tells all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

_CPU_ONLY = -99999
"""NVIMGCODEC_DEVICE_CPU_ONLY: no driver is looked for."""


class PictureCheck:
    """Decodes pictures and throws them away; made on the first call. ``ordinal`` None: on the CPU."""

    def __init__(self, ordinal: int | None) -> None:
        self._ordinal = ordinal
        self._decoder: Any = None

    def refused(self, pictures: Sequence[bytes]) -> list[bool]:
        """For each picture whether it cannot be decoded. Raises ImportError without nvImageCodec."""
        if self._decoder is None:
            self._decoder = self._new_decoder()
        return [self._decoder.decode(picture) is None for picture in pictures]

    def close(self) -> None:
        self._decoder = None

    def _new_decoder(self) -> Any:
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # it would tell of each bad picture on stderr
        from nvidia import nvimgcodec

        kinds = nvimgcodec.BackendKind
        if self._ordinal is None:
            return nvimgcodec.Decoder(device_id=_CPU_ONLY, backends=[nvimgcodec.Backend(kinds.CPU_ONLY)])
        wanted = (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU, kinds.CPU_ONLY)
        return nvimgcodec.Decoder(device_id=self._ordinal, backends=[nvimgcodec.Backend(kind) for kind in wanted])
