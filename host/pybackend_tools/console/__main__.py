"""A console beside a server, which starts it and tells its addresses on standard input, whose end ends the console."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from pybackend_client.connection import Credentials
from pybackend_tools.console.program import print_link, run
from pybackend_tools.console.settings import ConsoleSettings

_TIMEOUT_S = 10.0

with suppress(OSError):  # the pages, and the system's tools, name the process so
    Path("/proc/self/comm").write_text("console")

line = sys.stdin.buffer.readline()
if line:
    told = json.loads(line)
    # The server is the process that started this one: its certificate may be made out to any name.
    access = Credentials(told["headers"], verify=False)
    settings = ConsoleSettings(told["url"], told["metrics_url"], told["grpc_url"], _TIMEOUT_S, access)
    run(settings, print_link, ends_with_input=True)
