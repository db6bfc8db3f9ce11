"""A Unix-domain socket that several processes accept on: none of them can make the others wait."""

import socket
import threading

from pybackend.frontend.listening import bind_for
from tests.support.server import DEADLINE_S


def test_accepting_does_not_wait_whatever_another_process_has_set(tmp_path):
    """Whether a socket blocks is the same for all processes that have it."""
    shared, _ = bind_for(2, f"unix:{tmp_path}/sock", 0, "HTTP")
    outcome = []

    def accept():
        try:
            outcome.append(shared.accept())
        except BlockingIOError:
            outcome.append("nobody is there")

    with shared:
        shared.setblocking(True)
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        if thread.is_alive():
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"{tmp_path}/sock")
        thread.join()
        shared.remove_file()
    assert outcome == ["nobody is there"]
