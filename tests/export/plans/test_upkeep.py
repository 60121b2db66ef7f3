import os
import time
from hashlib import sha256

import pytest
from models import plain_preprocess
from vdali.engine.gpu_probe import GpuProbe
from vdali.engine.plans.files import locked
from vdali.engine.plans.flavour import TENSORRT, Flavour
from vdali.engine.plans.key import DIGEST_LETTERS, plan_key
from vdali.engine.plans.options import PlanOptions
from vdali.engine.plans.sidecar import PlanSidecar, sidecar_path
from vdali.engine.spec import ModelSpec, Precision, Task
from vdali.export.plans.cache import PlanCache

FLAVOUR = Flavour(TENSORRT, "11.4.0.106", None, None)


@pytest.fixture
def cache(tmp_path):
    return PlanCache(tmp_path)


def add(cache, model, content, *, age_s=0, size=1000, precision=Precision.FP32):
    """An entry whose last use was ``age_s`` seconds ago."""
    key = plan_key(content, precision, PlanOptions(), FLAVOUR, GpuProbe())
    plan = cache.directory / f"{model}-{precision}-{key.digest()[:DIGEST_LETTERS]}.plan"
    data = content.encode().ljust(size)
    plan.write_bytes(data)
    spec = ModelSpec(model, Task.EMBED, plain_preprocess((8, 8)), precision=precision)
    digest = sha256(data).hexdigest()
    sidecar = PlanSidecar(key, spec, size, digest, 1.0, "2026-01-01T00:00:00+00:00", "built, not run", ())
    sidecar_path(plan).write_text(sidecar.dumps())
    for path in (plan, sidecar_path(plan)):
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    return plan


def left(cache):
    return {entry.plan for entry in cache.ls()}


def test_a_folder_that_does_not_exist_is_empty(tmp_path):
    cache = PlanCache(tmp_path / "none")
    assert (cache.ls(), cache.verify(), cache.gc(keep=0)) == ([], [], [])


def test_entries_are_listed_by_last_use(cache):
    old, new = add(cache, "a", "1", age_s=100), add(cache, "b", "2")
    assert [entry.plan for entry in cache.ls()] == [new, old]
    entry = cache.ls()[0]
    assert entry.sidecar.spec.name == "b"
    assert entry.stored_bytes == 1000 + sidecar_path(new).stat().st_size


def test_verify_says_what_is_wrong_with_each(cache):
    whole, cut, renamed, alone = (add(cache, name, name) for name in ("whole", "cut", "renamed", "alone"))
    os.truncate(cut, 10)
    other = renamed.with_name("renamed-fp32-0000.plan")
    renamed.rename(other)
    sidecar_path(renamed).rename(sidecar_path(other))
    alone.unlink()
    assert {verdict.entry.plan: verdict.problem for verdict in cache.verify()} == {
        whole: "",
        cut: "plan truncated: 10 bytes, expected 1000",
        other: "its name is not that of its key",
        alone: "plan missing",
    }


def test_gc_keeps_the_last_used_of_each_model_and_precision(cache):
    add(cache, "a", "1", age_s=20)
    kept = {
        add(cache, "a", "2", age_s=10),
        add(cache, "b", "3", age_s=30),
        add(cache, "a", "4", precision=Precision.FP16, age_s=40),
    }
    assert len(cache.gc(keep=1)) == 1
    assert left(cache) == kept


def test_gc_by_age_and_by_size_takes_the_least_recently_used(cache):
    ancient = add(cache, "a", "1", age_s=1000)
    old = add(cache, "b", "2", age_s=100)
    new = add(cache, "c", "3")
    assert [entry.plan for entry in cache.gc(older_than_s=500)] == [ancient]
    room = sum(entry.stored_bytes for entry in cache.ls())
    assert cache.gc(max_bytes=room) == []
    assert [entry.plan for entry in cache.gc(max_bytes=room - 1)] == [old]
    assert left(cache) == {new}


def test_gc_without_limits_removes_only_what_is_broken(cache):
    whole, alone, bare = (add(cache, name, name) for name in ("whole", "alone", "bare"))
    alone.unlink()
    sidecar_path(bare).unlink()
    half = whole.with_name(whole.name + ".4711.tmp")
    half.write_bytes(b"half")
    stray_lock = cache.directory / "gone-fp32-123.plan.lock"
    stray_lock.touch()
    assert {entry.plan for entry in cache.gc()} == {alone, bare}
    assert {path for path in cache.directory.iterdir() if path.suffix != ".lock"} == {whole, sidecar_path(whole)}
    assert not stray_lock.exists()


def test_gc_leaves_alone_what_somebody_is_building(cache):
    plan = add(cache, "a", "1")
    half = plan.with_name(plan.name + ".4711.tmp")
    half.write_bytes(b"half")
    with locked(plan.with_name(plan.name + ".lock")) as held:
        assert held
        assert cache.gc(keep=0) == []
    assert plan.exists()
    assert half.exists()
    assert [entry.plan for entry in cache.gc(keep=0)] == [plan]
    assert list(cache.directory.iterdir()) == []
