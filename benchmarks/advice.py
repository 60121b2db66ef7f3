"""Does the first advice of a diagnosis give what it promises?

Each case is diagnosed, its first advice followed, and the whole run measured before and after in alternating rounds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engine.backends.load import load_engine
from ..engine.decoders.interface import DecodeMode, DecodeOptions
from ..engine.decoders.make import DecoderName
from ..engine.diagnosis.diagnose import diagnose
from ..engine.diagnosis.whole import Whole, measure_whole
from ..engine.lanes import LaneOptions, make_scheduler
from ..engine.sources.interface import Source
from ..engine.sources.open import open_source
from .data import make_jpegs
from .measure import Spread

LARGE_PHOTOS = 8


def measure_advice(
    model: Path, folder: Path, *, rounds: int, say: Callable[[str], None], seconds: float = 3.0
) -> list[dict[str, Any]]:
    """Follow the first advice in two cases; photos are made in ``folder``. ``say`` takes what was found, for people."""
    small = make_jpegs(folder / "photos-400", count=400)
    large = make_jpegs(folder / f"photos-large-{LARGE_PHOTOS}", count=LARGE_PHOTOS, width=4000, height=3000)
    exact = DecodeOptions(mode=DecodeMode.EXACT)
    cases = {
        "one lane on several CPUs": (small, LaneOptions(lanes=1)),
        "12 megapixel photos, --decode exact": (large, LaneOptions(decode=exact)),
    }
    results = []
    for name, (photos, lanes) in cases.items():
        source = open_source([str(photos[0].parent)])
        found = {"case": name, **follow_advice(model, source, lanes, rounds=rounds, seconds=seconds)}
        gain, cpu = (Spread.from_json(found[key]) for key in ("measured_gain", "measured_cpu_gain"))
        say(f"{name}: {found['verdict']}")
        say(f"  {found['change']}: predicted {found['predicted_gain']:.2f}x; measured {gain.text(2)}x")
        say(f"  by CPU time, which other processes move less: {cpu.text(2)}x")
        say(f"  the prediction is {found['predicted_over_measured'] - 1:+.0%} from the measured median")
        results.append(found)
    return results


def follow_advice(model: Path, source: Source, lanes: LaneOptions, *, rounds: int, seconds: float) -> dict[str, Any]:
    """Predicted gain of the first advice that is an option, and the gain in images/s and in CPU time measured.

    Raises LookupError where the diagnosis advises no option.
    """
    found = diagnose(model, source, lanes=lanes, device="cpu", seconds=seconds)
    first = next((advice for advice in found.advice if advice.options), None)
    if first is None:
        raise LookupError(f"The diagnosis advises no option: {found.verdict}")
    settings = {"before": lanes, "after": with_options(lanes, first.options)}
    wholes: dict[str, list[Whole]] = {name: [] for name in settings}
    for _ in range(rounds):
        for name, options in settings.items():
            wholes[name].append(_whole(model, source, options, seconds))
    pairs = list(zip(wholes["before"], wholes["after"], strict=True))
    rates = [after.throughput / before.throughput for before, after in pairs]
    cpu = [(before.cpu_s / before.samples) / (after.cpu_s / after.samples) for before, after in pairs]
    measured = Spread.of(rates)
    return {
        "verdict": found.verdict,
        "change": first.change,
        "predicted_gain": first.gain,
        "measured_gain": measured.to_json(),
        "measured_cpu_gain": Spread.of(cpu).to_json(),
        "predicted_over_measured": first.gain / measured.median,
    }


def with_options(lanes: LaneOptions, options: Mapping[str, Any]) -> LaneOptions:
    """``lanes`` with the options of an advice."""
    changes = dict(options)
    if "decode" in changes:
        changes["decode"] = replace(lanes.decode, mode=DecodeMode(changes["decode"]))
    if "decoder" in changes:
        changes["decoder"] = DecoderName(changes["decoder"])
    return replace(lanes, **changes)


def _whole(model: Path, source: Source, options: LaneOptions, seconds: float) -> Whole:
    with closing(load_engine(model, device="cpu", threads=options.threads).engine) as engine:
        scheduler, plan = make_scheduler(engine, options, engine.spec.preprocess)
        with closing(scheduler), tempfile.TemporaryDirectory() as scratch:
            return measure_whole(
                source,
                scheduler,
                engine.spec,
                lanes=plan.lanes,
                micro_batch=plan.micro_batch,
                seconds=seconds,
                scratch=Path(scratch),
            )
