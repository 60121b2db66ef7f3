"""``vdali scenario``: MLPerf-style traffic on vdali's own decoder and engine, from encoded bytes in memory to rows.

Each scenario ends with its one declared result. MLPerf-style, not a submission: trials are short, the model and the
images are the user's, and decoding is part of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engine.backends.interface import DeviceEngine
from ...engine.backends.load import load_engine
from ...engine.cpu import cpu_allowance
from ...engine.decoders.interface import DecodeOptions
from ...engine.decoders.make import DecoderName, make_decoder
from ...engine.errors import UsageError
from ...engine.job import environment
from ...export.plans.search import find_plan
from ..compare import gpu_of
from ..render import MUCH_ELSEWHERE
from ..report.words import number
from ..usage import OthersWatch
from .load import ScenarioName, Traffic, load_generator, run_trial
from .search import BEYOND, CONFIRMATIONS, RateFound, largest_rate
from .system import LanePool

DISCLAIMER = "MLPerf-style, not a submission"
_FEWEST_SINGLE = 64
"""Queries below which the generator has no opinion of a 90th percentile."""
_START_SHARE = 0.25
_WARM_BATCHES = 4

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """How scenarios are run.

    ``most`` images at once are the most that a lane takes of what is waiting. A trial goes on for ``seconds`` and, for
    the server, ``fewest`` queries. ``bound_s`` is the p99 latency that a server rate must hold, found to within
    ``step`` in at most ``most_trials`` trials. ``lanes`` None means one for each usable CPU.
    """

    decoder: DecoderName = DecoderName.AUTO
    device: str = "cpu"
    lanes: int | None = None
    threads: int = 1
    most: int = 8
    seconds: float = 4.0
    fewest: int = 200
    bound_s: float = 0.1
    step: float = 0.05
    most_trials: int = 60
    decode: DecodeOptions = field(default_factory=DecodeOptions)

    def __post_init__(self) -> None:
        if self.step <= 0 or self.bound_s <= 0 or self.seconds <= 0:
            raise UsageError(
                f"The bound ({self.bound_s} s), the length of a trial ({self.seconds} s) and the step ({self.step}) "
                "must be more than 0."
            )


@dataclass(frozen=True, slots=True)
class _Subject:
    """The system under test, warm, and how many samples/s it does when nothing waits."""

    pool: LanePool
    pictures: int
    capacity: float
    about: dict[str, Any]


def run_scenarios(
    names: Sequence[ScenarioName], model: Path, pictures: Sequence[bytes], options: ScenarioOptions, say: Say
) -> dict[str, Any]:
    """Run ``names`` in order over ``pictures``, encoded images that decode; returns a document for a bench file.

    Its ``results`` have one object per scenario with ``declared``, the one line that counts, and ``server_trials`` each
    step of the search. Raises MissingExtraError without the load generator, and VdaliError where a query does not
    become a row.
    """
    load_generator()
    with _subject(model, pictures, options, say) as subject:
        others, own_s = OthersWatch(), time.process_time()
        results = [_RUN[name](subject, options, say) for name in names]
        notes = [f"{DISCLAIMER}. Encoded images in memory to rows; decoding is part of the work."]
        share = others.share(time.process_time() - own_s)
        if share is not None and share > MUCH_ELSEWHERE:
            notes.append(
                f"Other processes used {100 * share:.0f} % of the CPUs meanwhile: measure again when they rest."
            )
            say(notes[-1])
        trials = [trial for result in results for trial in result.pop("trials", [])]
        return {
            "kind": "scenarios",
            "environment": environment(gpu_of(options.device)),
            **subject.about,
            "verdict": "; ".join(result["declared"] for result in results),
            "results": results,
            **({"server_trials": trials} if trials else {}),
            "notes": notes,
        }


@contextmanager
def _subject(model: Path, pictures: Sequence[bytes], options: ScenarioOptions, say: Say) -> Iterator[_Subject]:
    count = options.lanes or max(1, cpu_allowance().threads // options.threads)
    with ExitStack() as stack:
        loaded = load_engine(model, device=options.device, threads=options.threads, find_plan=find_plan)
        engine = stack.enter_context(closing(loaded.engine))
        most = min(options.most, engine.max_batch) if isinstance(engine, DeviceEngine) else options.most
        decoders = [
            stack.enter_context(
                closing(make_decoder(options.decoder, engine.spec.preprocess, options.decode, max_batch=most))
            )
            for _ in range(count)
        ]
        pool = stack.enter_context(closing(LanePool(engine, decoders, pictures, most=most)))
        pool.pass_over(_WARM_BATCHES * most * count)
        capacity = pool.pass_over(_WARM_BATCHES * most * count)
        about = {
            "model": engine.spec.name,
            "precision": engine.spec.precision.value,
            "weights": engine.spec.weights,
            "engine": engine.name,
            "decoder": decoders[0].name,
            "lanes": count,
            "threads_per_lane": options.threads,
            "most_images_at_once": most,
            "pictures": len(pictures),
            "trial_s": options.seconds,
            "fewest_queries_of_a_server_trial": options.fewest,
        }
        say(
            f"{DISCLAIMER}: {engine.spec.name} {engine.spec.precision} on {engine.name}, decoder {decoders[0].name}, "
            f"{count} lanes, up to {most} images at once; about {number(capacity)} samples/s"
        )
        yield _Subject(pool, len(pictures), capacity, about)


def _offline(subject: _Subject, options: ScenarioOptions, say: Say) -> dict[str, Any]:
    traffic = Traffic(ScenarioName.OFFLINE, options.seconds, subject.capacity)
    found = run_trial(subject.pool, subject.pictures, traffic)
    del say
    return {
        "scenario": ScenarioName.OFFLINE.value,
        "declared": f"offline: {number(found.throughput)} samples/s",
        **found.to_json(),
    }


def _single_stream(subject: _Subject, options: ScenarioOptions, say: Say) -> dict[str, Any]:
    traffic = Traffic(ScenarioName.SINGLE_STREAM, options.seconds, subject.capacity, fewest=_FEWEST_SINGLE)
    found = run_trial(subject.pool, subject.pictures, traffic)
    del say
    return {
        "scenario": ScenarioName.SINGLE_STREAM.value,
        "declared": f"single-stream: p90 latency {1e3 * found.latency_p90_s:.2f} ms",
        **found.to_json(),
    }


def _server(subject: _Subject, options: ScenarioOptions, say: Say) -> dict[str, Any]:
    seed = 0

    def latency_p99_s(rate: float) -> float:
        nonlocal seed
        seed += 1  # other arrivals each time, so that a repeat is a repeat
        traffic = Traffic(
            ScenarioName.SERVER, options.seconds, rate, fewest=options.fewest, bound_s=options.bound_s, seed=seed
        )
        return run_trial(subject.pool, subject.pictures, traffic).latency_p99_s

    found = largest_rate(
        latency_p99_s,
        bound_s=options.bound_s,
        start=subject.capacity * _START_SHARE,
        step=options.step,
        most_trials=options.most_trials,
        say=say,
    )
    return {
        "scenario": ScenarioName.SERVER.value,
        "declared": declared_server(found, options.bound_s),
        "throughput_samples_per_s": found.rate,
        "latency_p99_bound_s": options.bound_s,
        "confirmed": found.is_confirmed,
        "confirmations": found.confirmations,
        "fails_at_1.3x": found.fails_beyond,
        "trials": [trial.to_json() for trial in found.trials],
    }


def declared_server(found: RateFound, bound_s: float) -> str:
    """The one line of the server scenario."""
    bound = f"p99 <= {1e3 * bound_s:g} ms"
    if found.rate is None:
        lowest = min(found.trials, key=lambda trial: trial.rate)
        return f"server: no rate holds {bound}; at {number(lowest.rate)}/s p99 is {1e3 * lowest.latency_p99_s:.4g} ms"
    beyond = [trial for trial in found.trials if trial.phase == "beyond" and trial.rate == BEYOND * found.rate]
    if beyond:
        verdict = "fails" if found.fails_beyond else "holds too, so noise misled the search"
        more = f"{BEYOND}x of it {verdict}: p99 {1e3 * beyond[-1].latency_p99_s:.4g} ms"
    else:
        more = f"{BEYOND}x of it was not tried: the trials were used up"
    return (
        f"server: {number(found.rate)} samples/s at {bound} ({found.confirmations} of {CONFIRMATIONS} confirmations; "
        f"{more})"
    )


_RUN: dict[ScenarioName, Callable[[_Subject, ScenarioOptions, Say], dict[str, Any]]] = {
    ScenarioName.OFFLINE: _offline,
    ScenarioName.SINGLE_STREAM: _single_stream,
    ScenarioName.SERVER: _server,
}
