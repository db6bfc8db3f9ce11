"""The server's sandbox: settings and resources that all models share."""

import logging
import os
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pybackend.environment.environment import Environment
from pybackend.errors import ModelConfigError
from pybackend.sandbox.file_rules import ServerPlaces, chosen_caches, contains, exposed
from pybackend.sandbox.homes import Homes
from pybackend.sandbox.options import SandboxOptions, raised_limit, rank
from pybackend.sandbox.runtime_directory import RuntimeDirectory, is_among_temporary_files, scratch_places
from pybackend.sandbox.trust_domain import TrustDomain
from pybackend.sandbox.users import UserRange
from pybackend.settings import SandboxSettings
from pybackend_wire.confinement import LAYERS, OFF

log = logging.getLogger(__name__)

_CANARY = "sandbox-canary"
_CANARY_TEXT = "Processes of models try to read this file, and must fail.\n"

_CACHES_FRESH_S = 2.0


class Sandbox:
    """Makes the sandboxes of models."""

    def __init__(
        self,
        settings: SandboxSettings,
        repositories: Sequence[Path],
        bundle: Path,
        environments: Sequence[Path] = (),
    ) -> None:
        self.settings = settings
        self.users = UserRange()
        self.scratch = RuntimeDirectory(scratch_places(bundle.parent))
        self.homes = Homes(bundle.parent / "homes", settings.homes_limit_bytes)
        home = os.path.realpath(os.path.expanduser("~"))
        self.places = ServerPlaces(
            repositories=tuple(os.path.realpath(path) for path in repositories),
            private=(str(bundle.parent), *map(str, self.scratch.places)),
            bundle=str(bundle),
            home=home if os.path.isdir(home) and home != "/" else "",
            working_directory=os.getcwd(),
            environments=tuple(os.path.realpath(path) for path in environments),
        )
        open_to_all = exposed(self.places)
        # reason why some places cannot be hidden at ``standard``; "" if all can be
        self.exposed = _exposed_text(open_to_all, os.path.dirname(self.places.bundle))
        self._made_caches: list[str] = []
        self._caches_looked_s = -_CACHES_FRESH_S
        self._making_caches = threading.Lock()
        self._told: set[tuple[str, str]] = set()
        self._told_layers: set[str] = set()
        self._domains: dict[Environment, TrustDomain] = {}

    def level_of(self, model: str, options: SandboxOptions, source: str) -> str:
        """Return the level of a model. Raises ModelConfigError if it asks for less than the floor."""
        level, floor = options.level or self.settings.level, self.settings.floor
        if rank(level) < rank(floor):
            if options.level is None:
                return floor
            raise ModelConfigError(
                f"model '{model}': parameters SANDBOX is '{level}', and this server has --sandbox-floor={floor}. "
                f"Leave it out, or ask the server's operator ({source})"
            )
        widening = options.widening(level) or raised_limit(level, options, own_user=os.geteuid() == 0)
        if level == floor != OFF and widening:
            raise ModelConfigError(
                f"model '{model}': parameters {widening} would let it have more than the server's "
                f"--sandbox-floor={floor} does. Leave it out, or ask the server's operator ({source})"
            )
        return level

    def check_group(self, model: str, level: str, source: str) -> None:
        """Check that a model may live in a process with others. Raises ModelConfigError: the floor forbids it."""
        floor = self.settings.floor
        if level == floor != OFF:
            raise ModelConfigError(
                f"model '{model}': parameters PROCESS_GROUP would let it reach other models, and this server has "
                f"--sandbox-floor={floor}. Leave it out, or ask the server's operator ({source})"
            )

    def domain_of(self, environment: Environment) -> TrustDomain:
        """Return the trust domain of models that run in an environment; only for models with the usual users."""
        if environment not in self._domains:
            users = self.users if os.geteuid() == 0 else None
            self._domains[environment] = TrustDomain(users, self.scratch, self.homes.place)
        return self._domains[environment]

    def end_domain(self, domain: TrustDomain) -> None:
        """End a domain that no model uses; the next model gets a new one."""
        self._domains = {key: other for key, other in self._domains.items() if other is not domain}
        domain.end()

    def make_caches(self) -> None:
        """Create the directories that the operator names for what libraries keep, for models that run as the server's user.

        A confined process cannot create directories that did not exist when it was confined. Many processes that start
        together need only one look.
        """
        with self._making_caches:
            if time.monotonic() < self._caches_looked_s + _CACHES_FRESH_S:
                return
            for path in chosen_caches().values():
                with suppress(OSError):
                    os.makedirs(path, mode=0o700)
                    self._made_caches.append(path)
            self._caches_looked_s = time.monotonic()

    def canary(self) -> str:
        """Return a world-readable file that no model can read, created on first use; "" if that fails."""
        path = Path(self.places.private[0]) / _CANARY
        try:
            if not path.exists():
                path.write_text(_CANARY_TEXT)
                path.chmod(0o444)
        except OSError:
            return ""
        return str(path)

    def tell(self, whose: str, missing: Mapping[str, str]) -> None:
        """Log that layers are not in force, once for each, however many processes that concerns.

        The reasons are the doctor's.
        """
        for layer, reason in missing.items():
            log.debug("sandbox of %s: layer '%s' (%s) is not in force: %s", whose, layer, LAYERS[layer], reason)
        untold = [layer for layer in missing if layer not in self._told_layers]
        if not untold:
            return
        self._told_layers.update(untold)
        layers = " and ".join(filter(None, (", ".join(map(repr, untold[:-1])), repr(untold[-1]))))
        # A copy that the server has made does not outlive it, and what concerns it concerns all models.
        repositories = [path for path in self.places.repositories if not contains(self.places.private[0], path)]
        log.warning(
            "sandbox of %s, and perhaps of others: %s not in force. `pybackend doctor%s` says why, and what helps",
            whose,
            f"layer {layers} is" if len(untold) == 1 else f"layers {layers} are",
            "".join(f" {shlex.quote(path)}" for path in repositories[:1]),
        )

    def tell_of_home(self, model: str, error: OSError) -> None:
        """Log, once per reason, that a model's home is not kept."""
        reason = f"{error.strerror or error}: {error.filename or self.homes.directory}"
        if ("home", reason) not in self._told:
            self._told.add(("home", reason))
            log.warning("model '%s', and perhaps others, has no home directory that is kept: %s", model, reason)

    def tell_of_downloads(self, closed: str) -> None:
        """Log once that models cannot read downloads of the operator's account."""
        if ("downloads", closed) not in self._told:
            self._told.add(("downloads", closed))
            log.info(
                "Models download into their own home directories, although this account has files in its caches: other users "
                "cannot reach those because of %s. `chmod o+rx` there lets models read them.",
                closed,
            )

    def close(self) -> None:
        for path in self._made_caches:
            with suppress(OSError):  # it is in use now
                os.rmdir(path)
        self.scratch.close()
        self.users.close()


def _exposed_text(places: Sequence[str], own: str) -> str:
    """Why places cannot be hidden, and what to do; empty for none.

    The server has chosen ``own`` and what it calls its own.
    """
    by_server = [path for path in places if path == own or is_among_temporary_files(path)]
    by_user = [path for path in places if path not in by_server]
    texts = []
    if by_user:
        texts.append(
            f"models may write where {_listed(by_user)}: move {'it' if len(by_user) == 1 else 'them'} elsewhere"
        )
    if by_server:
        texts.append(f"models may write where {_listed(by_server)}: set XDG_CACHE_HOME to a directory elsewhere")
    return "; ".join(texts)


def _listed(places: Sequence[str]) -> str:
    return f"{places[0]} lies" if len(places) == 1 else f"{', '.join(places[:-1])} and {places[-1]} lie"
