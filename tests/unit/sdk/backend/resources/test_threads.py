"""Threads: all instances together have no more than there are cores."""

import os

import pytest

from pybackend_sdk.backend import cores, instance_count, threads_per_instance


def config(*groups):
    return {"instance_group": [{"kind": kind, "count": count} for kind, count in groups]}


@pytest.mark.parametrize(
    ("groups", "count"),
    [
        ((), 1),
        ([("KIND_CPU", 3)], 3),
        ([("KIND_CPU", 0)], 1),
        ([("KIND_CPU", 2), ("KIND_MODEL", 1), ("KIND_GPU", 8)], 3),
    ],
)
def test_instances_that_share_the_cores(groups, count):
    assert instance_count(config(*groups)) == count


def test_threads_share_the_cores():
    assert 1 <= cores() <= len(os.sched_getaffinity(0))
    for count in range(1, 2 * cores() + 1):
        threads = threads_per_instance(config(("KIND_CPU", count)))
        assert threads == max(1, cores() // count)
