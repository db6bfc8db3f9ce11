"""Where the time of a run goes: ``build/durations.txt`` lists every file of tests with the CPU time that it took.

CPU time, and not the clock, since a neighbour on the machine changes the latter. It counts this process, the processes
that it has waited for with all that those waited for, and servers that were forked: see ``warm_start``.

The table of the slowest files in ``tests/README.md`` is also the order in which files start: the longest go first, so
that no process of a parallel run is left alone with one at the end.

A plugin of pytest.
"""

import re
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.warm_start import forked_cpu_s

_ROOT = Path(__file__).resolve().parents[2]
_REPORT = Path("build", "durations.txt")
"""Where a run leaves its report, from its root."""

_TABLE = _ROOT / "tests" / "README.md"
_ROW = re.compile(r"^\| `(\S+\.py)` \|", re.MULTILINE)


def slowest_files() -> list[str]:
    """The files of the table in ``tests/README.md``, slowest first; paths begin in ``tests/``."""
    return [f"tests/{name}" for name in _ROW.findall(_TABLE.read_text())]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of the table first, in its order; what is not in it stays as it is."""
    places = {name: place for place, name in enumerate(slowest_files())}
    items.sort(key=lambda item: places.get(_file(item.nodeid), len(places)))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class _Clock:
    """Tells what has passed since it was last asked."""

    def __init__(self) -> None:
        self._last = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + forked_cpu_s()
        return cpu_s, time.monotonic()

    def lap(self) -> tuple[float, float]:
        """CPU seconds and seconds since the last call."""
        before, self._last = self._last, self._now()
        return self._last[0] - before[0], self._last[1] - before[1]


class _Measuring:
    """In each process that runs tests: puts into each report what a test's phase took."""

    def __init__(self) -> None:
        self._clock: _Clock | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        if self._clock is None:
            self._clock = _Clock()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        assert self._clock is not None
        report.took = self._clock.lap()
        return report  # type: ignore[no-any-return]


class _Summing:
    """In the process that hears of all results: adds up, and writes the file."""

    def __init__(self) -> None:
        self._cpu_s: Counter[str] = Counter()
        self._s: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = _file(report.nodeid)
        cpu_s, elapsed_s = getattr(report, "took", (0.0, 0.0))
        self._cpu_s[name] += cpu_s
        self._s[name] += elapsed_s
        self._tests[name] += report.when == "setup"

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if not self._tests:
            return
        directories: dict[str, list[str]] = {}
        for name in self._tests:
            directories.setdefault("/".join(name.split("/")[:2]), []).append(name)
        rows = [*self._rows(directories), "", *self._rows({name: [name] for name in self._tests})]
        report = config.rootpath / _REPORT
        report.parent.mkdir(exist_ok=True)
        report.write_text("\n".join([" CPU s      s  tests", *rows, ""]))
        terminalreporter.write_line(f"tests took {self._cpu_s.total():.0f} s of CPU time: {_REPORT} lists their files")

    def _rows(self, groups: dict[str, list[str]]) -> list[str]:
        columns = (self._cpu_s, self._s, self._tests)
        sums = [
            (*(sum(column[name] for name in names) for column in columns), group) for group, names in groups.items()
        ]
        return ["{:6.1f} {:6.1f} {:6d}  {}".format(*row) for row in sorted(sums, reverse=True)]


def pytest_configure(config: pytest.Config) -> None:
    """Measure where tests run; add up where their results arrive."""
    is_worker = hasattr(config, "workerinput")
    distributes = getattr(config.option, "dist", "no") != "no"
    if is_worker or not distributes:
        config.pluginmanager.register(_Measuring())
    if not is_worker:
        config.pluginmanager.register(_Summing())
