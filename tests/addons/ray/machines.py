"""A cluster of Ray whose machines are processes of this one: a program that adds and kills one for each line of its
input."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
}


class Machines:
    """The cluster, from another process."""

    def __init__(self, home: Path, cpus: int = 1) -> None:
        self._cpus = cpus
        self.environment = {**os.environ, **SETTINGS, "HOME": str(home)}
        subprocess.run([Path(sys.executable).with_name("ray"), "get-auth-token", "--generate"], env=self.environment, check=True, capture_output=True)  # fmt: skip
        self._log = home / "machines.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(cpus)],
                env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.environment["RAY_ADDRESS"] = self._answer()

    def add(self) -> None:
        """Start a machine."""
        self._order("add")

    def kill(self) -> None:
        """End the oldest machine but the first one without notice."""
        self._order("kill")

    def end(self) -> None:
        """End all machines."""
        self._process.communicate(timeout=120)

    def _order(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._answer() == word

    def _answer(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("> "):
                return line.removeprefix("> ").strip()
        raise AssertionError(f"the machines have ended: {self._log.read_text(errors='replace')[-3000:]}")


@contextmanager
def machines(home: Path, count: int) -> Iterator[Machines]:
    """So many machines for the length of a ``with`` block, each with one CPU."""
    found = Machines(home)
    try:
        for _ in range(count - 1):
            found.add()
        yield found
    finally:
        found.end()


def main() -> None:
    """Obey each line of the input."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": int(sys.argv[1]), "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    sys.stdout.write(f"> {cluster.address}\n")
    sys.stdout.flush()
    others = []
    for line in sys.stdin:
        if line.strip() == "add":
            others.append(cluster.add_node(num_cpus=int(sys.argv[1])))
        else:
            cluster.remove_node(others.pop(0), allow_graceful=False)
        sys.stdout.write(f"> {line}")
        sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main()
