from __future__ import annotations

import os
import resource

import pytest
from vdali.engine.doctor import machine
from vdali.engine.doctor.machine import machine_checks, package_version
from vdali.engine.doctor.report import Check, Status


def check(name: str) -> Check:
    return next(check for check in machine_checks() if check.name == name)


def test_every_check_has_words_and_bad_ones_have_advice():
    for found in machine_checks():
        assert found.found
        assert found.advice or found.status is Status.OK


def test_the_cpu_check_tells_the_threads_that_will_be_used():
    found = check("CPU")
    assert found.facts["threads"] >= 1
    assert found.facts["affinity"] == len(os.sched_getaffinity(0))
    assert f"{found.facts['threads']} threads" in found.found


@pytest.mark.parametrize(
    ("flags", "status", "int8"),
    [
        ({"sse4_2"}, Status.WARNING, Status.MISSING),
        ({"avx2"}, Status.OK, Status.MISSING),
        ({"avx2", "avx_vnni"}, Status.OK, Status.OK),
    ],
)
def test_missing_instructions_have_their_advice(monkeypatch, flags, status, int8):
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(machine, "has_vnni", lambda: "avx_vnni" in flags)
    assert check("CPU").status is status
    assert check("int8 on CPU").status is int8


def test_a_system_that_does_not_tell_its_instructions_is_no_warning(monkeypatch):
    monkeypatch.setattr(machine, "cpu_flags", frozenset)
    assert check("CPU").status is Status.OK


def test_memory_is_told_with_the_limit_of_the_control_group(monkeypatch):
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: 512 << 20)
    found = check("memory")
    assert found.status is Status.WARNING
    assert "limited to 0.5" in found.found
    assert found.facts["limit_bytes"] == 512 << 20
    assert found.facts["total_bytes"] > found.facts["available_bytes"] > 0


def test_few_open_files_are_a_warning():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        found = check("open files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.status is Status.WARNING
    assert found.facts == {"soft": 512, "hard": hard}
    assert "ulimit -n" in found.advice


def test_the_cache_folder_need_not_exist_and_is_not_made(tmp_path, monkeypatch):
    folder = tmp_path / "not" / "yet"
    monkeypatch.setenv("VDALI_CACHE", str(folder))
    found = check("cache")
    assert found.status is Status.OK
    assert found.facts["folder"] == str(folder)
    assert found.facts["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc/nowhere", __file__ + "/below"])
def test_a_cache_that_cannot_be_written_is_an_error(monkeypatch, folder):
    monkeypatch.setenv("VDALI_CACHE", folder)
    found = check("cache")
    assert found.status is Status.ERROR
    assert "not writable" in found.found
    assert "VDALI_CACHE" in found.advice


def test_a_full_disk_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("VDALI_CACHE", str(tmp_path))
    monkeypatch.setattr(machine, "MIN_DISK_BYTES", 1 << 62)
    assert check("cache").status is Status.WARNING


def test_a_folder_whose_name_is_not_utf8_can_be_printed(tmp_path, monkeypatch):
    folder = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    assert check("current folder").found.encode("utf-8")


def test_required_packages_are_those_of_the_base_install():
    names = machine._required_packages()
    assert {"numpy", "onnx", "simplejpeg", "onnxruntime-gpu"} <= set(names)
    assert not {"torch", "tensorrt", "pytest"} & set(names)


def test_a_missing_required_package_is_an_error(monkeypatch):
    monkeypatch.setattr(machine, "_required_packages", lambda: ["numpy", "no-such-package"])
    found = check("packages")
    assert found.status is Status.ERROR
    assert "1 of 2" in found.found
    assert found.advice == "pip install no-such-package"


def test_the_version_is_that_of_the_first_distribution_installed():
    assert package_version("no-such-package", "numpy") == package_version("numpy")
    assert package_version("no-such-package") is None
