"""MLPerf's load generator around a pool of lanes: one trial of a scenario, and what it measured.

The generator runs on a thread of this process and calls from threads of its own. Nothing raised there would come out,
so whatever goes wrong is kept and raised when the trial has ended.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ...engine.errors import MissingExtraError, VdaliError
from .system import LanePool, Query

_DETAIL = "mlperf_log_detail.txt"
_MARK = ":::MLLOG"
_INTERRUPTED = 130


class ScenarioName(StrEnum):
    """MLPerf's traffic: all samples at once, one after the other, or arriving at random at some rate."""

    OFFLINE = "offline"
    SINGLE_STREAM = "single-stream"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Traffic:
    """One trial. ``rate`` is samples/s: what is expected (offline) or asked for (server; unused by single-stream).

    The trial goes on for ``seconds`` and ``fewest`` queries at least. ``seed`` makes another order and other arrivals.
    """

    scenario: ScenarioName
    seconds: float
    rate: float
    fewest: int = 1
    bound_s: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a trial measured: queries, samples/s done, latency of queries in seconds.

    ``is_valid`` is the generator's own verdict on the trial, which also asks for MLPerf's number of queries.
    """

    queries: int
    throughput: float
    latency_p50_s: float
    latency_p90_s: float
    latency_p99_s: float
    is_valid: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "queries": self.queries,
            "throughput_samples_per_s": self.throughput,
            "latency_p50_s": self.latency_p50_s,
            "latency_p90_s": self.latency_p90_s,
            "latency_p99_s": self.latency_p99_s,
            "valid_for_loadgen": self.is_valid,
        }


def load_generator() -> Any:
    """The module; raises MissingExtraError where it is not installed."""
    try:
        import mlperf_loadgen
    except ImportError as error:
        raise MissingExtraError("mlcommons-loadgen", "loadgen", "A scenario") from error
    return mlperf_loadgen


def run_trial(pool: LanePool, pictures: int, traffic: Traffic) -> Loaded:
    """Load ``pool``, which has ``pictures``, with ``traffic``.

    Blocks until the last query is done. Raises VdaliError where a query did not become a row or the generator left no
    result, MissingExtraError where it is not installed.
    """
    generator = load_generator()
    problems: list[BaseException] = []

    def complete(tokens: Sequence[int]) -> None:
        try:
            generator.QuerySamplesComplete([generator.QuerySampleResponse(token, 0, 0) for token in tokens])
        except BaseException as error:  # on a lane, which must go on
            problems.append(error)

    def issue(samples: Sequence[Any]) -> None:
        try:
            pool.submit([Query(sample.id, sample.index) for sample in samples], complete)
        except BaseException as error:  # would end in the generator's C++
            problems.append(error)

    system = generator.ConstructSUT(issue, _nothing)
    library = generator.ConstructQSL(pictures, pictures, _nothing_to_load, _nothing_to_load)
    try:
        with tempfile.TemporaryDirectory(prefix="vdali-loadgen-") as folder:
            settings, logs = _settings(generator, traffic), _logs(generator, folder)
            _run(
                lambda: generator.StartTestWithLogSettings(
                    system, library, settings, logs, f"{folder}/no-audit.config"
                ),
                pool.idle,
            )
            values = _results(Path(folder) / _DETAIL)
    finally:
        generator.DestroyQSL(library)
        generator.DestroySUT(system)
    if problems:
        raise VdaliError(f"The load generator failed: {problems[0]}. Please report it.") from problems[0]
    pool.check()
    return _loaded(values, traffic)


def _run(trial: Callable[[], None], idle: Callable[[], None]) -> None:
    """Run ``trial`` on a thread of its own: an interrupt in the midst of the generator's C++ would end in a crash.

    It cannot be stopped either: after an interrupt it goes on to its end over lanes that only ``idle``, and a second
    interrupt ends the process.
    """
    problems: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            trial()
        except BaseException as error:
            problems.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="load-generator", daemon=True).start()
    try:
        ended.wait()
    except KeyboardInterrupt:
        idle()
        try:
            ended.wait()
        except KeyboardInterrupt:
            os._exit(_INTERRUPTED)
        raise
    if problems:
        raise problems[0]


def _nothing() -> None:
    """Nothing is held back, so there is nothing to flush."""


def _nothing_to_load(indices: Sequence[int]) -> None:
    """The encoded pictures are in memory all the time."""
    del indices


def _settings(generator: Any, traffic: Traffic) -> Any:
    settings = generator.TestSettings()
    settings.mode = generator.TestMode.PerformanceOnly
    settings.min_duration_ms = round(1e3 * traffic.seconds)
    settings.min_query_count = traffic.fewest
    settings.qsl_rng_seed = settings.sample_index_rng_seed = settings.schedule_rng_seed = traffic.seed
    if traffic.scenario is ScenarioName.OFFLINE:
        settings.scenario = generator.TestScenario.Offline
        settings.offline_expected_qps = traffic.rate
    elif traffic.scenario is ScenarioName.SINGLE_STREAM:
        settings.scenario = generator.TestScenario.SingleStream
    else:
        settings.scenario = generator.TestScenario.Server
        settings.server_target_qps = traffic.rate
        settings.server_target_latency_ns = round(1e9 * traffic.bound_s)
        settings.server_target_latency_percentile = 0.99
    return settings


def _logs(generator: Any, folder: str) -> Any:
    output = generator.LogOutputSettings()
    output.outdir = folder
    output.copy_summary_to_stdout = False
    logs = generator.LogSettings()
    logs.log_output = output
    logs.enable_trace = False
    return logs


def _results(path: Path) -> dict[str, Any]:
    """Keys and values of the generator's detail log."""
    values: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        _, mark, text = line.partition(_MARK)
        if mark:
            entry = json.loads(text)
            values[entry["key"]] = entry["value"]
    return values


def _loaded(values: dict[str, Any], traffic: Traffic) -> Loaded:
    rates = {
        ScenarioName.OFFLINE: "result_samples_per_second",
        ScenarioName.SINGLE_STREAM: "result_qps_with_loadgen_overhead",
        ScenarioName.SERVER: "result_completed_samples_per_sec",
    }
    try:
        return Loaded(
            queries=int(values["result_query_count"]),
            throughput=float(values[rates[traffic.scenario]]),
            latency_p50_s=values["result_50.00_percentile_latency_ns"] / 1e9,
            latency_p90_s=values["result_90.00_percentile_latency_ns"] / 1e9,
            latency_p99_s=values["result_99.00_percentile_latency_ns"] / 1e9,
            is_valid=values["result_validity"] == "VALID",
        )
    except KeyError as error:
        raise VdaliError(f"The load generator left no {error} in its log. Try a longer --seconds.") from error
