"""Other settings of the stages that take much of the CPU time, tried on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ..decoders.interface import DecodeMode, Decoder
from ..decoders.make import DecoderName, make_decoder
from ..device import HostDevice
from ..lanes import LaneOptions, LanePlan
from ..preprocess import Preprocess
from .advice import Alternative
from .measure import StagesAlone, in_rounds, relative_cost
from .model import DECODE, INFER, PipelineModel, StageCost

MICRO_BATCHES = (4, 8, 16, 32)

_LOOK_INTO = 0.15
"""Share of the CPU time from which on other settings of a stage are measured."""


class DecodersToTry:
    """The run's own decoder, and others made when they are asked for."""

    def __init__(self, options: LaneOptions, preprocess: Preprocess, micro_batch: int) -> None:
        self._options = options
        self._preprocess = preprocess
        self._micro_batch = micro_batch
        self._made: list[Decoder] = []
        self.own = self.make(options.decoder, options.decode.mode)

    def make(self, name: DecoderName, mode: DecodeMode) -> Decoder:
        decode = replace(self._options.decode, mode=mode)
        self._made.append(make_decoder(name, self._preprocess, decode, max_batch=self._micro_batch))
        return self._made[-1]

    def close(self) -> None:
        for decoder in self._made:
            decoder.close()


def alternatives_of(
    alone: StagesAlone,
    model: PipelineModel,
    decoders: DecodersToTry,
    options: LaneOptions,
    plan: LanePlan,
    seconds: float,
) -> list[Alternative]:
    """Other settings of the stages that take much of the CPU time, measured in turn with the present one."""
    found: list[Alternative] = []
    if model.cpu_share(DECODE) >= _LOOK_INTO:
        tries = _decoders_to_try(decoders.own.name, options)
        made = {change: decoders.make(name, mode) for change, _, name, mode in tries}
        works = {change: partial(alone.decode, decoder=decoder) for change, decoder in made.items()}
        costs = _compared(model.costs[DECODE], alone.decode, works, seconds)
        found += [Alternative(change, words, DECODE, costs[change]) for change, words, _, _ in tries]
    if plan.device == HostDevice.name and model.cpu_share(INFER) >= _LOOK_INTO:
        sizes = [size for size in MICRO_BATCHES if size != plan.micro_batch and size <= options.batch_size]
        works = {f"--micro-batch {size}": partial(alone.infer, size=size) for size in sizes}
        costs = _compared(model.costs[INFER], alone.infer, works, seconds)
        found += [
            Alternative(change, {"micro_batch": size}, INFER, costs[change])
            for size, change in zip(sizes, works, strict=True)
        ]
    return found


def _compared(
    cost: StageCost,
    present: Callable[[float], StageCost],
    works: Mapping[str, Callable[[float], StageCost]],
    seconds: float,
) -> dict[str, StageCost]:
    """Costs of ``works`` in terms of ``cost``, that of ``present``."""
    if not works:
        return {}
    rounds = in_rounds({"": present, **works}, seconds)
    return {name: relative_cost(cost, rounds[name], rounds[""]) for name in works}


def _decoders_to_try(own: str, options: LaneOptions) -> list[tuple[str, dict[str, str], DecoderName, DecodeMode]]:
    tries: list[tuple[str, dict[str, str], DecoderName, DecodeMode]] = []
    if options.decode.mode is DecodeMode.EXACT:
        tries.append(("--decode fast", {"decode": "fast"}, options.decoder, DecodeMode.FAST))
    if own != DecoderName.TURBO:
        tries.append(("--decoder turbo", {"decoder": "turbo"}, DecoderName.TURBO, options.decode.mode))
    return tries
