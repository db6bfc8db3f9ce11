"""Rolls out three candidates, as a scheduler runs the tasks of a graph: one takes over, two are rolled back."""

import argparse
import threading
from pathlib import Path

import tasks

from pybackend_client import Client, RefusedError

CANDIDATES = Path(__file__).resolve().parent / "candidates"


class Users:
    """Clients who know nothing of versions, and go on asking."""

    def __init__(self, url):
        self.url = url
        self.answered = self.failed = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    def _ask(self):
        with Client(self.url) as client:
            while not self._done.wait(0.005):
                try:
                    client("risk").infer(amount=[0.0, 500.0])
                    self.answered += 1
                except RefusedError:
                    self.failed += 1


def run(url, candidate):
    """The graph: upload >> check_answers >> share >> watch >> promote, and roll_back if one of them fails."""
    steps = (
        (tasks.upload, (candidate,)),
        (tasks.check_answers, ()),
        (tasks.share, (20,)),
        (tasks.watch, (20,)),
        (tasks.promote, ()),
    )
    try:
        for task, arguments in steps:
            task(url, *arguments)
    except tasks.CanaryError as error:
        tasks.roll_back(url)
        return f"rolled back after {task.__name__}: {error}"
    except BaseException:
        tasks.roll_back(url)
        raise
    return "promoted"


def version_that_answers(url):
    with Client(url) as client:
        return client("risk").infer(amount=[1.0]).model_version


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    url = parser.parse_args().url

    expected = {
        "wrong": ("1", "rolled back after check_answers: version 2 answers"),
        "fragile": ("1", "rolled back after watch: version 2 has failed"),
        "better": ("2", "promoted"),
    }
    with Users(url) as users:
        for name, (version, outcome) in expected.items():
            said, answering = run(url, CANDIDATES / name), version_that_answers(url)
            print(f"{name}: {said}; version {answering} answers")
            assert said.startswith(outcome), said
            assert answering == version
        tasks.roll_back(url)
    print(f"users: {users.answered} answers, {users.failed} errors of the fragile candidate")
    assert users.answered
    print("PASS: canary")


if __name__ == "__main__":
    main()
