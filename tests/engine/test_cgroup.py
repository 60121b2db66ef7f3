from __future__ import annotations

from pathlib import Path

from vdali.engine.cgroup import cpu_quota, memory_limit_bytes


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


def test_no_control_groups_mean_no_limit(tmp_path):
    assert cpu_quota(str(tmp_path)) is None
    assert memory_limit_bytes(str(tmp_path)) is None


def test_version_2_reads_the_group_of_the_process(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box",
            "sys/fs/cgroup/pod/box/cpu.max": "150000 100000",
            "sys/fs/cgroup/pod/box/memory.max": "1073741824",
            "sys/fs/cgroup/other/cpu.max": "1000 100000",
        },
    )
    assert cpu_quota(root) == 1.5
    assert memory_limit_bytes(root) == 1 << 30


def test_the_tightest_ancestor_counts(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b/c",
            "sys/fs/cgroup/a/b/c/cpu.max": "max 100000",
            "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
            "sys/fs/cgroup/a/cpu.max": "50000 20000",
            "sys/fs/cgroup/a/b/c/memory.max": "max",
            "sys/fs/cgroup/a/memory.max": "5000",
            "sys/fs/cgroup/a/b/memory.max": "9000",
        },
    )
    assert cpu_quota(root) == 2.5
    assert memory_limit_bytes(root) == 5000


def test_a_quota_of_max_is_no_limit(tmp_path):
    root = write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"})
    assert cpu_quota(root) is None


def test_version_1_with_joined_controllers(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpuset:/x\n4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n1:name=systemd:/y",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "2147483648",
        },
    )
    assert cpu_quota(root) == 2.5
    assert memory_limit_bytes(root) == 2 << 30


def test_version_1_says_no_limit_in_its_own_way(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "2:cpu:/\n1:memory:/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert cpu_quota(root) is None
    assert memory_limit_bytes(root) is None


def test_a_container_that_sees_the_hosts_path_finds_its_limit_at_the_top(tmp_path):
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "2:cpu:/kubepods/pod1/box\n0::/../..",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert cpu_quota(root) == 1.0


def test_a_relative_group_path_stays_inside_the_mount(tmp_path):
    root = write(tmp_path, {"proc/self/cgroup": "0::/../..", "sys/fs/cgroup/cpu.max": "300000 100000"})
    assert cpu_quota(root) == 3.0


def test_damaged_files_are_no_limit(tmp_path):
    root = write(
        tmp_path,
        {"proc/self/cgroup": "nonsense\n0::/", "sys/fs/cgroup/cpu.max": "", "sys/fs/cgroup/memory.max": "lots"},
    )
    assert cpu_quota(root) is None
    assert memory_limit_bytes(root) is None
