"""Starts threads."""

import sys
import threading
from collections.abc import Callable


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread. Raises RuntimeError: no more threads can be started, or the process is about to end."""
    if sys.is_finalizing():  # before Python 3.12 the caller would wait for ever for a thread that cannot begin
        raise RuntimeError("can't start new thread at interpreter shutdown")
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
