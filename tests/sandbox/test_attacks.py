"""Every attack of the table, against every kind of server, at both levels: what the table says is what happens."""

from pathlib import Path

import pytest

from pybackend_stub.sandbox import landlock
from tests.sandbox.hosts import IS_ROOT, MEMORY_MB, arena
from tests.sandbox.table import ATTACKS, OWN, SHARED, STANDARD, STOPPED, STRICT, USER
from tests.support.thorough import thorough

pytestmark = pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock, or something forbids it")

NEEDS_SCOPES = {"unix_abstract", "signal_host", "signal_other_model"}

OWN_PROCESSES, SHARED_PROCESSES = 64, 400


def options(level: str, processes: int, **more: str) -> dict[str, str]:
    return {
        "SANDBOX": level,
        "SANDBOX_PROCESSES": str(processes),
        "SANDBOX_MEMORY_MB": str(MEMORY_MB),
        **more,
    }


@pytest.mark.parametrize("kind", ["root", "user", *thorough("docker", "kubernetes")])
def test_attacks(kind):
    as_root = kind in {"root", "docker"}
    processes = OWN_PROCESSES if as_root else SHARED_PROCESSES
    attackers = {level: (level, OWN if as_root else USER, options(level, processes)) for level in (STANDARD, STRICT)}
    if as_root:
        for level in (STANDARD, STRICT):
            attackers[f"{level}_shared"] = level, SHARED, options(level, processes, SANDBOX_UID="host")
    models = {"victim": {"SANDBOX": STANDARD}, **{name: asked for name, (_, _, asked) in attackers.items()}}
    wrong = {}
    with arena(kind, models=models) as host:
        host.server.wait_ready()
        assert list(Path(host.context["server_directory"], "diagnostics").glob("*/*/*")), "there is no key to read"
        victim = host.ask("victim")
        host.context["other_pid"] = victim["pid"]
        host.context["most_processes"] = processes
        for name, (level, who, _) in attackers.items():
            host.context["own_model"] = host.context["other_model"].replace("victim", name)
            tried = [attack for attack in ATTACKS if to_be_tried(attack, who)]
            said = host.ask(name, tried)
            if IS_ROOT:
                assert (said["uid"] == 0) == (who == SHARED)
            for attack, (succeeded, text) in said["results"].items():
                expected = ATTACKS[attack].verdict(level, who)
                if succeeded is not None and succeeded != (expected != STOPPED):
                    wrong[name, attack] = f"{expected}, but: {text}"
            assert host.ask("victim")["pid"] == victim["pid"]
        assert not wrong, "\n".join(f"{name} {attack}: {text}" for (name, attack), text in wrong.items())


def to_be_tried(attack: str, who: str) -> bool:
    if attack in NEEDS_SCOPES and landlock.version() < landlock.SCOPES and who != OWN:
        return False
    # Nothing would stop it: neither is there a limit for the superuser, nor does one of its own processes mind.
    return not (attack == "fork_bomb" and who == SHARED)
