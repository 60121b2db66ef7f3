"""Lanes under a load generator: every query is answered once, by its own picture, whatever goes wrong."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from models import mean_colour_model
from pictures import encoded, number_of
from vdali.benchmarks.scenario.load import ScenarioName, Traffic, load_generator, run_trial
from vdali.benchmarks.scenario.run import DISCLAIMER, ScenarioOptions, run_scenarios
from vdali.benchmarks.scenario.system import LanePool, Query
from vdali.engine.backends.load import load_engine
from vdali.engine.decoders.interface import DecodeOptions
from vdali.engine.decoders.make import DecoderName, make_decoder
from vdali.engine.errors import MissingExtraError, UsageError, VdaliError

PICTURES = [encoded(number, "JPEG", (64, 48)) for number in range(24)]
SHORT = ScenarioOptions(seconds=0.3, fewest=30, most_trials=30)


class Noting:
    """Engine that notes which pictures each call brought, told by their colours; it can be held up, and can break."""

    def __init__(self, path) -> None:
        self._engine = load_engine(path, device="cpu").engine
        self.name, self.spec, self.content = self._engine.name, self._engine.spec, self._engine.content
        self.calls: list[list[int]] = []
        self.is_waiting = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()
        self.breaks: BaseException | None = None

    def infer(self, pixels):
        if not self.may_go.is_set():
            self.is_waiting.set()
            assert self.may_go.wait(30)
        if self.breaks is not None:
            raise self.breaks
        outputs = self._engine.infer(pixels)
        self.calls.append([number_of(mean) for mean in outputs["embedding"]])
        return outputs

    def close(self) -> None:
        self._engine.close()


@pytest.fixture
def engine(tmp_path):
    with closing(Noting(mean_colour_model(tmp_path / "mean.onnx", (16, 16)))) as engine:
        yield engine


@contextmanager
def pool_of(engine, *, lanes: int = 2, most: int = 4, pictures=PICTURES):
    spec = engine.spec.preprocess
    decoders = [make_decoder(DecoderName.TURBO, spec, DecodeOptions(), max_batch=most) for _ in range(lanes)]
    with closing(LanePool(engine, decoders, pictures, most=most)) as pool:
        yield pool
    for decoder in decoders:
        decoder.close()


def answers(pool: LanePool, queries: list[Query]) -> list[int]:
    """Tokens in the order in which they came back; the queries are submitted one by one."""
    tokens: list[int] = []
    ended = threading.Event()

    def done(some) -> None:
        tokens.extend(some)
        if len(tokens) >= len(queries):
            ended.set()

    for query in queries:
        pool.submit([query], done)
    assert ended.wait(30)
    return tokens


def test_every_query_is_answered_once_from_its_own_picture(engine):
    queries = [Query(1000 + number, (7 * number) % len(PICTURES)) for number in range(100)]
    with pool_of(engine) as pool:
        tokens = answers(pool, queries)
        pool.check()
    assert sorted(tokens) == [query.token for query in queries]
    inferred = sorted(number for call in engine.calls for number in call)
    assert inferred == sorted(query.picture for query in queries)
    assert max(map(len, engine.calls)) <= 4


def test_a_lane_takes_what_is_waiting_at_once_but_leaves_the_idle_ones_their_share(engine):
    with pool_of(engine, lanes=1, most=8) as pool:
        engine.may_go.clear()
        pool.submit([Query(0, 0)], lambda tokens: None)
        assert engine.is_waiting.wait(30)
        pool.submit([Query(number, number) for number in range(1, 12)], lambda tokens: None)
        engine.may_go.set()
        assert pool.pass_over(1) > 0
    assert engine.calls[0] == [0]
    assert engine.calls[1] == list(range(1, 9))


def test_a_query_whose_picture_or_engine_fails_still_ends_and_is_told(engine):
    with pool_of(engine, pictures=[PICTURES[0], b"no picture"]) as pool:
        assert sorted(answers(pool, [Query(5, 0), Query(6, 1)])) == [5, 6]
        with pytest.raises(VdaliError, match="1 of the queries did not become a row"):
            pool.check()
    for problem in (MemoryError("no room"), SystemExit("gone")):
        engine.breaks = problem
        with pool_of(engine) as pool, pytest.raises(VdaliError, match=f"{type(problem).__name__}: {problem}"):
            pool.pass_over(3)


def test_a_trial_that_fails_on_the_generator_s_threads_ends_and_raises(engine):
    engine.breaks = MemoryError("no room")
    traffic = Traffic(ScenarioName.SERVER, 0.1, 50.0, fewest=5)
    with pool_of(engine) as pool, pytest.raises(VdaliError, match="MemoryError: no room"):
        run_trial(pool, len(PICTURES), traffic)


@pytest.mark.parametrize("name", list(ScenarioName))
def test_an_interrupt_ends_a_trial_without_work_for_what_is_left_and_without_a_crash(engine, name):
    def interrupt() -> None:
        assert engine.is_waiting.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        while not pool._is_idling:
            time.sleep(0.001)
        engine.may_go.set()

    engine.may_go.clear()
    with pool_of(engine, lanes=1) as pool:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run_trial(pool, len(PICTURES), Traffic(name, 0.2, 100.0, fewest=400))
        thread.join()
        assert len(engine.calls) == 1


@pytest.mark.parametrize("name", list(ScenarioName))
def test_the_generator_s_queries_are_all_answered_and_timed(engine, name):
    with pool_of(engine) as pool:
        found = run_trial(pool, len(PICTURES), Traffic(name, 0.2, 100.0, fewest=20))
    assert found.throughput > 0
    assert 0 < found.latency_p50_s <= found.latency_p90_s <= found.latency_p99_s < 5
    assert sum(map(len, engine.calls)) >= 20
    if name is ScenarioName.SINGLE_STREAM:
        assert {len(call) for call in engine.calls} == {1}


def test_another_seed_gives_other_arrivals_at_the_same_rate(engine):
    with pool_of(engine) as pool:
        orders = []
        for seed in (1, 1, 2):
            engine.calls.clear()
            run_trial(pool, len(PICTURES), Traffic(ScenarioName.SERVER, 0.1, 100.0, fewest=15, seed=seed))
            orders.append([number for call in engine.calls for number in call][:8])
    assert sorted(orders[0]) == sorted(orders[1])
    assert sorted(orders[0]) != sorted(orders[2])


def test_all_three_scenarios_end_with_their_declared_results_and_leave_no_file(tmp_path, monkeypatch):
    model = mean_colour_model(tmp_path / "mean.onnx", (16, 16))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    said: list[str] = []
    options = replace(SHORT, most_trials=3)
    document = run_scenarios(list(ScenarioName), model, PICTURES, options, said.append)
    offline, single, server = document["results"]
    assert offline["declared"] == f"offline: {_four_digits(offline['throughput_samples_per_s'])} samples/s"
    assert single["declared"] == f"single-stream: p90 latency {1e3 * single['latency_p90_s']:.2f} ms"
    assert server["declared"].startswith("server: ")
    assert 1 <= len(document["server_trials"]) <= 3
    assert server["latency_p99_bound_s"] == 0.1
    assert document["notes"][0].startswith(DISCLAIMER)
    assert said[0].startswith(DISCLAIMER)
    assert list((tmp_path / "cwd").iterdir()) == []


def _four_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def test_without_the_generator_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vdali\[loadgen\]'"):
        load_generator()


def test_a_bound_of_nothing_is_refused():
    with pytest.raises(UsageError, match="must be more than 0"):
        ScenarioOptions(bound_s=0.0)


def test_the_pool_s_numbers_are_of_as_many_pictures_as_were_asked_for(engine):
    with pool_of(engine) as pool:
        rate = pool.pass_over(50)
    assert rate > 0
    assert np.concatenate(engine.calls).size == 50
