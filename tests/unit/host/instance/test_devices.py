from __future__ import annotations

import pytest

from pybackend.instance.devices import count_gpus


@pytest.fixture
def devices(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_only_numbered_devices_are_gpus(devices, monkeypatch):
    monkeypatch.delenv("TRITON_SERVER_CPU_ONLY", raising=False)
    assert count_gpus(devices) == 2


def test_the_environment_can_hide_them(devices, monkeypatch):
    monkeypatch.setenv("TRITON_SERVER_CPU_ONLY", "1")
    assert count_gpus(devices) == 0
