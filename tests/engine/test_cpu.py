from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from vdali.engine.cpu import cpu_allowance, cpu_flags, cpu_model, has_vnni


def machine(root: Path, *, cpu_max: str | None = None, cpuinfo: str | None = None) -> str:
    (root / "proc/self").mkdir(parents=True)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    if cpu_max is not None:
        (root / "sys/fs/cgroup/cpu.max").write_text(cpu_max + "\n")
    if cpuinfo is not None:
        (root / "proc/cpuinfo").write_text(cpuinfo)
    return str(root)


@pytest.fixture
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("cpu_max", "threads", "quota"),
    [
        (None, 8, None),
        ("max 100000", 8, None),
        ("300000 100000", 3, 3.0),
        ("150000 100000", 2, 1.5),
        ("10000 100000", 1, 0.1),
        ("6400000 100000", 8, 64.0),
    ],
)
def test_threads_follow_affinity_and_quota(tmp_path, eight_cpus, cpu_max, threads, quota):
    allowance = cpu_allowance(machine(tmp_path, cpu_max=cpu_max))
    assert (allowance.threads, allowance.affinity, allowance.present) == (threads, 8, 16)
    assert allowance.quota == quota


def test_a_platform_without_affinity_counts_all_cpus(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    allowance = cpu_allowance(machine(tmp_path))
    assert (allowance.threads, allowance.affinity) == (6, 6)


def test_an_unknown_number_of_cpus_is_one_thread(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpu_allowance(machine(tmp_path)).threads == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform cannot pin a process")
def test_a_pinned_process_gets_one_thread_and_reads_it_anew():
    code = """
import os
from vdali.engine.cpu import cpu_allowance
before = cpu_allowance()
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
after = cpu_allowance()
print(before.affinity == len(os.sched_getaffinity(os.getppid())), after.affinity, after.threads)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "1", "1"]


@pytest.mark.parametrize(
    ("flags", "vnni"), [("fpu avx2", False), ("fpu avx2 avx512_vnni", True), ("avx2 avx_vnni", True), ("", False)]
)
def test_vnni_is_read_from_the_flags_of_the_first_cpu(tmp_path, flags, vnni):
    cpuinfo = f"processor\t: 0\nmodel name\t: Maker X1\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags : avx512_vnni\n"
    root = machine(tmp_path, cpuinfo=cpuinfo)
    assert has_vnni(root) is vnni
    assert cpu_flags(root) == set(flags.split())
    assert cpu_model(root) == "Maker X1"


def test_an_arm_machine_lists_features(tmp_path):
    root = machine(tmp_path, cpuinfo="processor\t: 0\nFeatures\t: fp asimd asimddp\n")
    assert cpu_flags(root) == {"fp", "asimd", "asimddp"}
    assert cpu_model(root) == ""


def test_a_system_without_cpuinfo_tells_nothing(tmp_path):
    assert cpu_flags(str(tmp_path)) == frozenset()
    assert has_vnni(str(tmp_path)) is False
