"""Cores granted: affinity and the quotas of control groups, read from folders made for the test."""

from __future__ import annotations

import os

import pytest

from retriever.cores import granted_cores


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


@pytest.fixture
def machine(tmp_path):
    """Eight processors, four cores, no control group; `granted` reads it."""
    for number in range(8):
        core = number % 4
        write(
            tmp_path / "cpu" / f"cpu{number}" / "topology" / "thread_siblings_list",
            f"{core},{core + 4}\n",
        )

    class Machine:
        root = tmp_path
        groups = tmp_path / "cgroup"

        def member(self, *lines):
            write(tmp_path / "membership", "".join(f"{line}\n" for line in lines))

        def granted(self, affinity=range(8), physical=False):
            return granted_cores(
                physical=physical,
                affinity=affinity,
                membership=tmp_path / "membership",
                groups=tmp_path / "cgroup",
                processors=tmp_path / "cpu",
            )

    return Machine()


def test_without_control_groups_the_affinity_decides(machine):
    assert machine.granted() == 8
    assert machine.granted(affinity={1, 5, 6}) == 3


@pytest.mark.parametrize(
    ("quota", "granted"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),  # rounded up
        ("1000 100000", 1),
        ("100000", 8),  # cut off: says nothing
        ("nonsense here", 8),
        ("1600000 100000", 8),  # more than the affinity allows
    ],
)
def test_a_quota_of_version_2_is_rounded_up_and_never_raises_the_count(machine, quota, granted):
    machine.member("0::/user/job")
    write(machine.groups / "user" / "job" / "cpu.max", f"{quota}\n")
    assert machine.granted() == granted


def test_the_quota_of_a_group_around_binds_too(machine):
    machine.member("0::/outer/inner")
    write(machine.groups / "outer" / "inner" / "cpu.max", "max 100000\n")
    write(machine.groups / "outer" / "cpu.max", "300000 100000\n")
    assert machine.granted() == 3


def test_in_a_container_the_mount_itself_is_the_group_that_counts(machine):
    machine.member("0::/hosts/path/that/is/not/visible/here")
    write(machine.groups / "cpu.max", "400000 100000\n")
    assert machine.granted() == 4


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
@pytest.mark.parametrize(("quota", "granted"), [("-1", 8), ("250000", 3), ("0", 8)])
def test_a_quota_of_version_1_is_read_under_either_name_of_its_mount(
    machine, controllers, quota, granted
):
    machine.member("7:memory:/a", f"4:{controllers}:/docker/box", "0::/")
    for mount in {controllers, "cpu"}:
        write(machine.groups / mount / "docker" / "box" / "cpu.cfs_quota_us", f"{quota}\n")
        write(machine.groups / mount / "docker" / "box" / "cpu.cfs_period_us", "100000\n")
    assert machine.granted() == granted


def test_both_versions_side_by_side_take_the_smaller(machine):
    machine.member("1:cpu:/a", "0::/a")
    write(machine.groups / "cpu" / "a" / "cpu.cfs_quota_us", "500000")
    write(machine.groups / "cpu" / "a" / "cpu.cfs_period_us", "100000")
    write(machine.groups / "unified" / "a" / "cpu.max", "200000 100000")
    assert machine.granted() == 2


def test_a_period_of_nothing_is_no_quota(machine):
    machine.member("1:cpu:/")
    write(machine.groups / "cpu" / "cpu.cfs_quota_us", "100000")
    write(machine.groups / "cpu" / "cpu.cfs_period_us", "0")
    assert machine.granted() == 8


def test_hyperthreads_of_a_core_count_once_when_cores_are_asked_for(machine):
    assert machine.granted(physical=True) == 4
    assert machine.granted(affinity={0, 4}, physical=True) == 1
    assert machine.granted(affinity={0, 4}) == 2


def test_processors_that_nobody_describes_count_one_each(machine):
    assert machine.granted(affinity={20, 21, 22}, physical=True) == 3


def test_a_path_cannot_climb_out_of_the_mount(machine):
    machine.member("0::/../../elsewhere")
    write(machine.root / "elsewhere" / "cpu.max", "100000 100000")
    assert machine.granted() == 8


def test_here_it_is_at_least_one_and_at_most_the_affinity():
    assert 1 <= granted_cores(physical=True) <= granted_cores() <= len(os.sched_getaffinity(0))
