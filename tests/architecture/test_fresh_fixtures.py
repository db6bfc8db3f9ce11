"""Tests that share a server get a new one after a test that failed: it may be broken."""

import subprocess
import sys

_TESTS = """
import pytest

made = []

@pytest.fixture(scope="module")
def directory():
    made.append("directory")
    yield
    made.append("directory ends")

@pytest.fixture(scope="module", params=["a"])
def server(directory, request):
    made.append("server " + request.param)
    yield
    made.append("server ends")

@pytest.fixture
def client(server):
    yield
    made.append("client ends")

def test_first(client):
    pass

def test_that_shares_and_fails(client):
    made.clear()
    raise AssertionError

def test_after_a_failure(client):
    assert made == ["client ends", "server ends", "directory ends", "directory", "server a"]
    made.clear()

def test_after_a_success(client):
    assert made == ["client ends"]
"""


def test_after_a_failure_shared_fixtures_are_new(tmp_path):
    tests = tmp_path / "test_these.py"
    tests.write_text(_TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.fresh_fixtures",
        "-q",
        "-n",
        "0",
        "--rootdir",
        tmp_path,
    ]
    ran = subprocess.run([*command, tests], check=False, capture_output=True, text=True, timeout=120)
    assert "1 failed, 3 passed" in ran.stdout, ran.stdout
