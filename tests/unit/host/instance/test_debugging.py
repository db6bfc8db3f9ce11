"""Ports for debuggers: handed out in order, given back, and named in what the log tells editors."""

import pytest

from pybackend.errors import ModelLoadError
from pybackend.instance.debugging import DebuggerPorts
from pybackend.settings import DebugSettings
from pybackend_wire.host_messages import DebuggerPoint


def taken(ports: DebuggerPorts, count: int) -> list[int]:
    return [point.port for point in ports.reserve([f"m_{index}" for index in range(count)])]


def test_ports_follow_each_other_and_come_back() -> None:
    """A model that is reloaded gets new ones, for its old processes still listen; then the lowest is free again."""
    ports = DebuggerPorts(DebugSettings(("m",), 5000))
    old = ports.reserve(["m_0", "m_1"])
    assert old == [DebuggerPoint(5000, waits=False), DebuggerPoint(5001, waits=False)]
    assert taken(ports, 1) == [5002]
    ports.give_back(old)
    assert taken(ports, 3) == [5000, 5001, 5003]


def test_there_is_an_end_to_ports() -> None:
    ports = DebuggerPorts(DebugSettings(("m",), 65535))
    assert taken(ports, 1) == [65535]
    with pytest.raises(ModelLoadError, match="no port left for a debugger from 65535 on: choose a lower --debug-port"):
        taken(ports, 1)


def test_free_ports_differ() -> None:
    ports = DebuggerPorts(DebugSettings(("m",), 0, waits=True))
    points = ports.reserve(["m_0", "m_1", "m_2"])
    assert len({point.port for point in points}) == 3
    assert all(point.waits and point.port > 0 for point in points)


def test_models_are_debugged_by_name() -> None:
    ports = DebuggerPorts(DebugSettings(("a", "b")))
    assert [ports.debugs(name) for name in ("a", "b", "c", "")] == [True, True, False, False]
