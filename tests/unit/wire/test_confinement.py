"""How a process is confined: what travels to it."""

from pybackend_wire.confinement import STANDARD, STRICT, Confinement

PLAIN = Confinement(STANDARD, [("/usr", "rx"), ("/tmp", "rwx")], {"CORE": 0}, {}, {"uid": "why"})


def test_what_is_sent_is_what_arrives():
    sent = PLAIN._replace(uid=1000, network=False, variables={"A": "b", "C": None}, required=["files"], offers=[])
    arrived = Confinement.from_json(sent.to_json())
    assert arrived.to_json() == sent.to_json()
    assert arrived._replace(paths=sent.paths) == sent  # JSON has lists where there were pairs


def test_environment_is_changed_where_something_is_said():
    changed = PLAIN._replace(variables={"HOME": "/scratch", "GONE": None, "NEVER": None})
    assert changed.environment({"HOME": "/root", "GONE": "x", "KEPT": "y"}) == {"HOME": "/scratch", "KEPT": "y"}


def test_nothing_is_inherited_where_it_is_scrubbed():
    scrubbed = PLAIN._replace(level=STRICT, scrubbed=True, variables={"PATH": "/usr/bin", "SECRET": None})
    assert scrubbed.environment({"SECRET": "x", "OTHER": "y"}) == {"PATH": "/usr/bin"}
