"""Freed memory stays with the process."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from pybackend_sdk.backend.resources import keep_freed_memory

def run(mib):
    blocks = [b"x" * (mib << 20) for _ in range(2)]

def faults(mib):
    run(mib)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        run(mib)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
print(faults(10))
"""
"""Prints the page faults of ten runs that need 20 MiB."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_the_memory_of_a_run_serves_the_next_one():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < 10 * 20 * 256 // 4, "pages are not fetched again in every run"
