"""What a stub says that cannot be debugged: as a process of its own, for debugging changes the interpreter for good."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

STUB = Path(__file__).resolve().parents[3] / "stub"
SDK = STUB.parent / "sdk"


def refusal(before: str, port: int = 0) -> str:
    """Run ``start_debugger`` after some code, and return the text of the exception that it raises."""
    code = f"""
import sys
sys.path[:0] = [{str(STUB)!r}, {str(SDK)!r}]
{before}
from pybackend_sdk.error import TritonModelException
from pybackend_stub.debugger import start_debugger
try:
    start_debugger({port}, False, "")
except TritonModelException as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd="/"
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_without_debugpy_it_says_how_to_install_it() -> None:
    assert refusal("sys.modules['debugpy'] = None") == (
        "the model's Python cannot be debugged: import of debugpy halted; None in sys.modules. Install debugpy where the "
        f"model runs: {sys.executable} -m pip install --upgrade 'debugpy>=1.6.4'"
    )


def test_an_old_debugpy(tmp_path: Path) -> None:
    (tmp_path / "debugpy.py").write_text("__version__ = '1.5.0'\ndef listen(address):\n    raise AssertionError\n")
    assert refusal(f"sys.path.insert(0, {str(tmp_path)!r})") == (
        "the model's Python cannot be debugged: its debugpy 1.5.0 is too old: "
        f"{sys.executable} -m pip install --upgrade 'debugpy>=1.6.4'"
    )


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert refusal("", port) == (
            f"cannot listen on 127.0.0.1:{port}: Address already in use. --debug-port chooses another port, 0 a free one"
        )
