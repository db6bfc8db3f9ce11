"""The server's sandbox: what holds for all models, and what is handed out to them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pybackend.environment.environment import Environment
from pybackend.errors import ModelConfigError
from pybackend.sandbox.file_rules import ServerPlaces, exposed, usual_caches
from pybackend.sandbox.limits import raised_limit
from pybackend.sandbox.options import SandboxOptions, rank
from pybackend.sandbox.scratch import ScratchRoom
from pybackend.sandbox.trust_domain import TrustDomain
from pybackend.sandbox.users import UserRange
from pybackend.settings import SandboxSettings
from pybackend_wire.confinement import LAYERS, OFF

log = logging.getLogger(__name__)

_CANARY = "sandbox-canary"
_CANARY_TEXT = "Processes of models try to read this file, and must not be able to.\n"


class Sandbox:
    """Makes the sandboxes of models.

    Attributes:
        settings: what the operator says.
        places: what the server has on disk.
        users: numbers for processes' users.
        scratch: where private directories are made.
        exposed: what cannot be hidden at standard, as a reason; "" if all can.
    """

    def __init__(self, settings: SandboxSettings, repositories: Sequence[Path], bundle: Path) -> None:
        self.settings = settings
        self.users = UserRange()
        self.scratch = ScratchRoom()
        self.places = ServerPlaces(
            repositories=tuple(os.path.realpath(path) for path in repositories),
            private=(str(bundle.parent), *self.scratch.parents),
            bundle=str(bundle),
            home=_home(),
            working_directory=os.getcwd(),
        )
        open_to_all = exposed(self.places)
        self.exposed = f"models may write where {', '.join(open_to_all)} lies: move it elsewhere" if open_to_all else ""
        self._made_caches: list[str] = []
        self._told: set[tuple[str, str]] = set()
        self._domains: dict[Environment, TrustDomain] = {}

    def level_of(self, model: str, options: SandboxOptions, source: str) -> str:
        """The level of a model.

        Raises:
            ModelConfigError: it asks for less than the floor.
        """
        level, floor = options.level or self.settings.level, self.settings.floor
        if rank(level) < rank(floor):
            if options.level is None:
                return floor
            raise ModelConfigError(
                f"model '{model}': parameters SANDBOX is '{level}', and this server has --sandbox-floor={floor}. "
                f"Leave it out, or ask the server's operator ({source})"
            )
        widening = options.widening or raised_limit(level, options, own_user=os.geteuid() == 0)
        if level == floor != OFF and widening:
            raise ModelConfigError(
                f"model '{model}': parameters {widening} would let it have more than the server's "
                f"--sandbox-floor={floor} does. Leave it out, or ask the server's operator ({source})"
            )
        return level

    def domain_of(self, environment: Environment) -> TrustDomain:
        """What models share that run in an environment; for those of them that have the usual users."""
        if environment not in self._domains:
            users = self.users if os.geteuid() == 0 else None
            self._domains[environment] = TrustDomain(users, self.scratch)
        return self._domains[environment]

    def end_domain(self, domain: TrustDomain) -> None:
        """Nobody is left in it: whoever comes next gets another one."""
        self._domains = {key: other for key, other in self._domains.items() if other is not domain}
        domain.end()

    def make_caches(self) -> None:
        """Make the directories in which libraries keep weights, for models that are the same user as the server.

        What is not there when a process is confined cannot be made by it.
        """
        for path in usual_caches(self.places.home):
            with suppress(OSError):
                os.makedirs(path, mode=0o700)
                self._made_caches.append(path)

    def canary(self) -> str:
        """A file that anybody may read and no model can; made when it is first needed. "" if there can be none."""
        path = Path(self.places.private[0]) / _CANARY
        try:
            if not path.exists():
                path.write_text(_CANARY_TEXT)
                path.chmod(0o444)
        except OSError:
            return ""
        return str(path)

    def tell(self, model: str, layer: str, reason: str) -> None:
        """Say once in the log that a layer is not in force, however many models that is so for."""
        if (layer, reason) not in self._told:
            self._told.add((layer, reason))
            log.warning(
                "sandbox of model '%s', and perhaps of others: layer '%s' (%s) is not in force: %s",
                model,
                layer,
                LAYERS[layer],
                reason,
            )

    def close(self) -> None:
        """Give everything back; the models are gone."""
        for path in self._made_caches:
            with suppress(OSError):  # it is in use now
                os.rmdir(path)
        self.scratch.close()
        self.users.close()


def _home() -> str:
    home = os.path.realpath(os.path.expanduser("~"))
    return home if os.path.isdir(home) and home != "/" else ""
