"""Mode ``poll``: keeps the served models equal to the repositories."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from pybackend.apart import apart
from pybackend.errors import ErrorCode, InferenceError, ModelLoadError
from pybackend.model.fingerprint import Fingerprint, file_stamp, fingerprint
from pybackend.model.host import ModelHost, NotLoaded
from pybackend.modelconfig.loader import load_policy
from pybackend.modelconfig.model_directory import config_file
from pybackend.modelconfig.schema import ModelConfig
from pybackend.repository.catalogue import ModelCatalogue
from pybackend.repository.changes import LoadRequest, ModelChanges
from pybackend.repository.entry import ModelEntry
from pybackend.repository.layout import DUPLICATE_REASON, RepositoryScan
from pybackend.threads import start_thread

log = logging.getLogger(__name__)

_STOP_CHECK_MS = 1000
_STEPS = 5
_NOT_WATCHED = "/__pycache__"


class ChangeNotices:
    """Watches directories, and everything below them, on a thread: the kernel tells of changes.

    It may miss some, so notices only shorten a wait. Links are not followed, and some network file systems have no
    notices.

    Args:
        changed: set on the event loop after a change.
        settle_s: changes that follow each other within a part of this give one notice.
    """

    def __init__(self, directories: Sequence[Path], changed: asyncio.Event, settle_s: float) -> None:
        self._directories = directories
        self._changed = changed
        self._step_ms = max(1, round(settle_s * 1000 / _STEPS))
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to watch. Listing a large tree takes long, so it is done on the thread too."""
        if not self._directories:
            return
        start_thread(self._watch, "pybackend-notices")

    def stop(self) -> None:
        """Stop soon; no notice follows."""
        self._stop.set()

    def _watch(self) -> None:
        from watchfiles import watch  # only servers that poll need it

        try:
            for _ in watch(
                *self._directories,
                watch_filter=lambda _change, path: _NOT_WATCHED not in path,
                stop_event=self._stop,
                step=self._step_ms,
                rust_timeout=_STOP_CHECK_MS,
                yield_on_timeout=False,
                raise_interrupt=False,
            ):
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._notice)
        except (OSError, RuntimeError) as error:
            log.warning("Changes of the repositories are noticed only by polling: they cannot be watched: %s", error)

    def _notice(self) -> None:
        if not self._stop.is_set():
            self._changed.set()


COMPLAINT_S = 60.0
"""The log names a model that has been changing for this long."""

_UNFINISHED_PERIODS = 2
"""A configuration file that seems to be half written counts after so many periods without a change."""

_NEVER = -1
"""Marks a model in cloud storage that must be loaded again, even if it does not change."""

_Stamps = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class _Look:
    """A model on disk, at one moment."""

    directory: Path | None  # the model's; None for a name that occurs in several repositories
    files: Fingerprint | None = None  # of the directory; None if they are too many to compare
    config: tuple[object, ...] = ()  # the name and the stamp of the configuration file
    remote: int = 0  # changes with the files of a model in cloud storage; 0 for others
    # stamps of the files outside the directory from which its versions were loaded, by path. Not compared with
    # ``==``, because the paths are known only after the first load.
    outside: _Stamps = field(default_factory=dict, compare=False)

    def equals(self, other: _Look | None) -> bool:
        """True if nothing has changed between two looks."""
        if other is None or self != other:
            return False
        return all(other.outside.get(path, stamp) == stamp for path, stamp in self.outside.items())

    def without(self, paths: Collection[str]) -> _Look:
        """The same without some files, given by their paths in the model's directory."""
        return self if self.files is None or not paths else replace(self, files=self.files.without(paths))

    def changed(self, before: _Look | None) -> frozenset[str]:
        """The files that differ, as far as that is known."""
        if before is None or before.files is None or self.files is None:
            return frozenset()
        return self.files.changed(before.files)


@dataclass
class _Unsettled:
    """A model that differs from what was last loaded."""

    look: _Look | None  # the last one; None if the model is gone
    moment: int  # of that look
    since_s: float  # when it began to change
    same_since_s: float  # of that look
    complained: bool = False  # the log has named it


LOOP_LOADS, LOOP_S = 5, 60.0
"""So many loads of a model within this time, each because the same file has changed, are no work of its author."""


class LoopWatch:
    """Notices models that load again and again, because a process that nobody knows changes their files."""

    def __init__(self) -> None:
        self._loads: dict[str, deque[tuple[float, frozenset[str]]]] = {}

    def note(self, name: str, changed: frozenset[str]) -> None:
        """A model is loaded because of these changes."""
        loads = self._loads.setdefault(name, deque(maxlen=LOOP_LOADS))
        loads.append((monotonic(), changed))
        same = frozenset.intersection(*(files for _, files in loads))
        took_s = loads[-1][0] - loads[0][0]
        if len(loads) < LOOP_LOADS or took_s > LOOP_S or not same:
            return
        loads.clear()
        log.warning(
            "Model '%s' was loaded %d times in %.0f s, because %s keeps changing: if a program that the model starts "
            "or a library writes it, let that write elsewhere, such as below /tmp",
            name,
            LOOP_LOADS,
            took_s,
            min(same),
        )


class Poller:
    """Looks for changes, and loads and unloads models.

    A change is carried out once the model looks the same twice; where the configuration file of a model that serves
    seems to be half written, once it has stayed so for two periods. Models in cloud storage look as in the last listing
    of their repository; listings go on by themselves, so that a repository that does not answer delays no other. A
    failed load is not repeated until the model changes again; the versions that served keep serving.
    """

    def __init__(self, catalogue: ModelCatalogue, changes: ModelChanges, scan: RepositoryScan, host: ModelHost) -> None:
        assert host.settings.looks_every_s is not None
        self._catalogue = catalogue
        self._changes = changes
        self._scan = scan
        self._config_name = host.settings.config_name
        self._period_s = host.settings.looks_every_s
        self._settle_s = min(host.settings.settle_s, host.settings.looks_every_s)
        self._carried_out: dict[str, _Look] = {}
        self._unsettled: dict[str, _Unsettled] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._trouble = ""
        self._looks = 0
        self._own_files = host.own_files
        self._loops = LoopWatch()

    async def remember(self) -> None:
        """Note the models as they are now, before the first loads."""
        files = self._changes.files
        with suppress(ModelLoadError):  # a repository does not answer: its models will be loaded when it does
            await files.remote.digests()
        with suppress(ModelLoadError):  # the file system does not answer: the first look will load what has changed
            scan = replace(self._scan, listings=files.remote.listings)
            self._carried_out = await apart("the repositories", _look_at, scan, self._config_name, {})

    async def run(self) -> None:
        noticed = asyncio.Event()
        notices = ChangeNotices(self._scan.places, noticed, self._settle_s)
        notices.start()
        listing = asyncio.create_task(self._changes.files.remote.follow(self._period_s, self._settle_s, noticed.set))
        log.info("following changes of %s", ", ".join(self._scan.place_names))
        try:
            while True:
                await self._wait(noticed)
                noticed.clear()
                try:
                    await self._look()
                except Exception:  # the next look may succeed
                    log.exception("a search for changes of the repositories failed")
        finally:
            notices.stop()
            running = [listing, *self._running.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _wait(self, noticed: asyncio.Event) -> None:
        if not self._unsettled:
            try:
                async with asyncio.timeout(self._period_s):
                    await noticed.wait()
            except TimeoutError:
                return
        await asyncio.sleep(self._settle_s)

    async def _look(self) -> None:
        outside = {name: _outside(entry) for name, entry in self._catalogue.entries.items()}
        try:
            scan = await self._changes.files.scan()
            found = await apart("the repositories", _look_at, scan, self._config_name, outside)
        except ModelLoadError as error:
            if self._trouble != str(error):
                log.error("The repositories cannot be searched for changes, and models stay as they are: %s", error)  # noqa: TRY400
            self._trouble = str(error)
            return
        self._trouble = ""
        self._looks += 1
        found = {name: self._without_own_files(look) for name, look in found.items()}
        for name, known in self._carried_out.items():
            self._carried_out[name] = self._without_own_files(known)
        for unsettled in self._unsettled.values():
            unsettled.look = unsettled.look and self._without_own_files(unsettled.look)
        for name in sorted({*found, *self._carried_out, *self._unsettled}):
            look = found.get(name)
            await self._consider(name, look, self._moment(name, look, scan))

    def _without_own_files(self, look: _Look) -> _Look:
        return look if look.directory is None else look.without(self._own_files.of(look.directory))

    def _moment(self, name: str, look: _Look | None, scan: RepositoryScan) -> int:
        """A number that differs between looks at different times; for cloud storage, the number of the last listing."""
        seen = look or self._carried_out.get(name)
        listing = None if seen is None or seen.directory is None else scan.listings.get(seen.directory.parent)
        return self._looks if listing is None else listing.number

    async def _consider(self, name: str, look: _Look | None, moment: int) -> None:
        known, before = self._carried_out.get(name), self._unsettled.get(name)
        if look is known or (look is not None and look.equals(known)):
            if look is not None:
                self._carried_out[name] = look
            self._unsettled.pop(name, None)
        elif before is None:
            now_s = monotonic()
            self._unsettled[name] = _Unsettled(look, moment, now_s, now_s)
        elif not (look is before.look or (look is not None and look.equals(before.look))):
            before.look, before.moment, before.same_since_s = look, moment, monotonic()
            if not before.complained and monotonic() - before.since_s > COMPLAINT_S:
                before.complained = True
                log.warning(
                    "Model '%s' has been changing for %d s: it is loaded once its files stay the same for %g s",
                    name,
                    COMPLAINT_S,
                    self._settle_s,
                )
        elif moment != before.moment and name not in self._running:  # it waits for the end of the change before
            may_go_on = monotonic() - before.same_since_s < _UNFINISHED_PERIODS * self._period_s
            if not (may_go_on and await self._seems_unfinished(name, look, known)):
                self._begin(name, look)

    async def _seems_unfinished(self, name: str, look: _Look | None, known: _Look | None) -> bool:
        """Whether the configuration file of a model that serves may be in the middle of a change."""
        entry = self._catalogue.entries.get(name)
        if look is None or look.directory is None or entry is None or not entry.ready_versions():
            return False
        if known is None or look.config == known.config:
            return False
        had = [_tensors_of(source.config) for source in entry.sources.values()]
        what = f"the configuration of model '{name}'"
        return await apart(what, _lacks_tensors, look.directory, self._config_name, frozenset().union(*had))

    def _begin(self, name: str, look: _Look | None) -> None:
        del self._unsettled[name]
        if look is None:
            del self._carried_out[name]
        else:
            self._loops.note(name, look.changed(self._carried_out.get(name)))
            self._carried_out[name] = look
        task = self._running[name] = asyncio.create_task(self._carry_out(name, look))
        task.add_done_callback(lambda _done: self._running.pop(name))

    async def _carry_out(self, name: str, look: _Look | None) -> None:
        if look is not None and look.directory is not None:
            await self._load(name, look)
            return
        try:
            reason = "it was removed from the repository" if look is None else DUPLICATE_REASON
            log.info("model '%s' is unloaded: %s", name, reason)
            await self._changes.begin_unload(name, unload_dependents=False)
            if look is not None:
                entry = self._catalogue.entries.get(name) or self._catalogue.new_entry(name)
                entry.not_loaded = NotLoaded(DUPLICATE_REASON, known=False)
        except InferenceError as error:
            log.error("the change of model '%s' has no effect: %s", name, error.message.strip())  # noqa: TRY400

    async def _load(self, name: str, look: _Look) -> None:
        log.info("model '%s' %s", name, "has changed" if self._serves(name) else "is new or has changed")
        try:
            await self._changes.load(name, LoadRequest(directory=look.directory))
        except InferenceError as error:  # the log has the reason
            so_far = "keeps serving as before its change" if self._serves(name) else "does not serve"
            when = "when its files change"
            if look.remote and error.code is ErrorCode.UNAVAILABLE:  # storage does not answer, but may soon
                self._carried_out[name] = replace(look, remote=_NEVER)
                when = "soon"
            log.error("model '%s' %s: it is loaded again %s", name, so_far, when)  # noqa: TRY400

    def _serves(self, name: str) -> bool:
        return bool(self._catalogue.ready_versions(name))


def _outside(entry: ModelEntry) -> tuple[str, ...]:
    """The files outside the model's directory from which its versions were loaded."""
    sources = entry.sources.values()
    paths = [path for source in sources for path in (source.backend_file, source.environment_path) if path is not None]
    return tuple(dict.fromkeys(map(str, paths)))


def _tensors_of(config: ModelConfig) -> frozenset[str]:
    """The names of the inputs and outputs in a configuration."""
    return frozenset(tensor.name for tensor in (*config.inputs, *config.outputs))


def _lacks_tensors(directory: Path, config_name: str, had: frozenset[str]) -> bool:
    """Whether the configuration file is missing, empty or broken, or lacks tensors that it had. Blocking."""
    try:
        status = (directory / config_file(directory, config_name)).stat()
        return not status.st_size or not had <= _tensors_of(load_policy(directory, config_name=config_name))
    except (OSError, ModelLoadError):
        return True


def _look_at(scan: RepositoryScan, config_name: str, outside: Mapping[str, tuple[str, ...]]) -> dict[str, _Look]:
    """Look at every model, except for those in cloud storage whose files were not listed yet. Blocking."""
    found = {}
    for name, directory in scan.models.items():
        stamps = {path: file_stamp(path) for path in outside.get(name, ())}
        listing = scan.listings.get(directory.parent)
        if listing is not None:
            if directory.name in listing.digests:
                found[name] = _Look(directory, remote=listing.digests[directory.name], outside=stamps)
        else:
            config = config_file(directory, config_name)
            stamp = file_stamp(str(directory / config))
            found[name] = _Look(directory, fingerprint(directory), (config, stamp), outside=stamps)
    return found | dict.fromkeys(scan.duplicates, _Look(None))
