"""How much memory the server believes to have."""

import os

import pytest

from pybackend.observability.memory import usable_memory_bytes

MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
GIB = 1 << 30


@pytest.fixture
def usable(tmp_path):
    """What is found below control groups that are files of this test."""

    def usable(membership, **limits):
        for place, text in limits.items():
            file = tmp_path / "cgroup" / place.replace("__", "/").replace("_max", ".max").replace("_limit", ".limit")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tmp_path / "membership").write_text(membership)
        return usable_memory_bytes(tmp_path / "cgroup", tmp_path / "membership")

    return usable


def test_no_control_groups(tmp_path):
    assert usable_memory_bytes(tmp_path / "none", tmp_path / "none") == MACHINE_BYTES


def test_limit_of_the_process_or_of_a_group_above(usable):
    assert usable("0::/a/b\n", a__b__memory_max=f"{GIB}\n") == GIB
    assert usable("0::/a/b\n", a__b__memory_max="max\n", a__memory_max=f"{GIB // 2}\n") == GIB // 2


def test_own_group_at_the_top(usable):
    """As within a container, whose paths are those of the host."""
    assert usable("0::/kubepods/pod7\n", memory_max=f"{GIB}\n") == GIB


def test_first_version_of_control_groups(usable):
    lines = "9:name=systemd:/\n4:cpu,memory:/docker/x\n"
    assert usable(lines, memory__docker__x__memory_limit_in_bytes=f"{GIB}\n") == GIB
    assert usable(lines, memory__docker__x__memory_limit_in_bytes=f"{2**63 - 4096}\n") == MACHINE_BYTES
