"""The stub's own threads: they serve the host, and a debugger that stops the model must not stop them."""

import threading
from typing import Any, Callable


class ServiceThread(threading.Thread):
    """A daemon thread that runs no code of a model.

    Attributes:
        pydev_do_not_trace: tells debugpy not to stop it.
        is_pydev_daemon_thread: tells debugpy not to show it.
    """

    pydev_do_not_trace = True
    is_pydev_daemon_thread = True

    def __init__(self, name: str, run: "Callable[..., None]", *arguments: Any) -> None:
        super().__init__(target=run, args=arguments, name=name, daemon=True)
