"""Regions: what can be registered, what is refused, and when their descriptors are closed."""

import os
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

from pybackend.errors import ErrorCode, InferenceError
from pybackend.ipc.client_regions import LONGEST_NAME, MOST_REGIONS, ClientRegion, ClientRegions
from pybackend.ipc.segment import RESERVED_PREFIX
from tests.support.client_memory import client_region


def refusal(call, *arguments):
    with pytest.raises(InferenceError) as raised:
        call(*arguments)
    return raised.value.code, raised.value.message


@contextmanager
def another_user():
    """While this lasts, this process may only do what an ordinary user may."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def descriptors_of(path):
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    return sum(link.startswith(path) for link in links)


def test_permission_is_denied():
    with client_region(None, 64) as region:
        os.chmod(region.path, 0)
        with another_user():
            code, text = refusal(ClientRegion, "r", region.key, 0, 64)
        assert code is ErrorCode.INTERNAL
        assert text.startswith(f"Unable to open shared memory region: '{region.key}': the server's user (")


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket", "link"])
def test_what_is_no_shared_memory_is_refused_without_waiting(kind):
    path = Path(f"/dev/shm/pybackend_test_{kind}_{os.getpid()}")
    target = socket.socket(socket.AF_UNIX)
    try:
        match kind:
            case "directory":
                path.mkdir()
            case "fifo":
                os.mkfifo(path)
            case "socket":
                target.bind(str(path))
            case _:
                path.symlink_to("/etc/hosts")
        code, text = refusal(ClientRegion, "r", path.name, 0, 1)
        assert code is ErrorCode.INTERNAL
        assert text.startswith(f"Unable to open shared memory region: '{path.name}'")
        assert not descriptors_of(str(path))
    finally:
        target.close()
        path.rmdir() if kind == "directory" else path.unlink()


def test_descriptors_live_as_long_as_a_request_uses_the_region():
    regions = ClientRegions(enabled=True)
    with client_region(None, 64) as region:
        own = descriptors_of(region.path)
        regions.register("r", region.key, 0, 64)
        part = regions.find("r", 16, 48)
        regions.unregister("r")
        assert refusal(regions.find, "r", 0, 1)[0] is ErrorCode.NOT_FOUND
        assert descriptors_of(region.path) == own + 2
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(part.region.reading.descriptor, b"x")  # stubs that read inputs cannot write there
        part.region.write(part.offset, b"text")
        assert bytes(region.array("u1", 16, 4)) == b"text"
        del part
        assert descriptors_of(region.path) == own


def test_regions_that_have_shrunk_are_not_written_to():
    with client_region(None, 8192) as region:
        found = ClientRegion("r", region.key, 0, 8192)
        os.truncate(region.path, 4096)
        code, text = refusal(found.write, 4000, bytes(100))
        assert code is ErrorCode.INVALID_ARG
        assert text.startswith("shared memory region 'r' has been made smaller since it was registered")
        assert os.stat(region.path).st_size == 4096


def test_the_number_and_the_names_of_regions_are_bounded():
    regions = ClientRegions(enabled=True)
    with client_region(None, 64) as region:
        for name, text in (("", "1 to 1024 characters"), ("r" * (LONGEST_NAME + 1), "this one has 1025")):
            code, found = refusal(regions.register, name, region.key, 0, 64)
            assert code is ErrorCode.INVALID_ARG
            assert text in found
        for number in range(MOST_REGIONS):
            regions.register(f"r{number}", region.key, 0, 64)
        code, text = refusal(regions.register, "one more", region.key, 0, 64)
        assert code is ErrorCode.UNAVAILABLE
        assert text.startswith("failed to register shared memory region 'one more': 1024 regions are registered")
        regions.unregister("")
        assert not regions.status("")


def test_descriptors_are_left_for_the_server():
    regions = ClientRegions(enabled=True, is_reserved=lambda _descriptor: True)
    with client_region(None, 64) as region:
        own = descriptors_of(region.path)
        code, text = refusal(regions.register, "r", region.key, 0, 64)
        assert (code, text) == (
            ErrorCode.UNAVAILABLE,
            "failed to register shared memory region 'r': the server has no descriptors left for it",
        )
        assert descriptors_of(region.path) == own


def test_the_servers_own_memory_cannot_be_named():
    regions = ClientRegions(enabled=True)
    for key in (f"{RESERVED_PREFIX}1", f"//{RESERVED_PREFIX}"):
        code, text = refusal(regions.register, "r", key, 0, 64)
        assert code is ErrorCode.INVALID_ARG
        assert text == (
            f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix "
            "'triton_python_backend_shm_region_'"
        )
