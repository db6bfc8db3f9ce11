"""Which files models reach at standard: what is hidden is in no rule, what a rule gives already in no other."""

from pathlib import Path

from pybackend.sandbox.file_rules import ModelPlaces, ServerPlaces, exposed, standard_rules


def rules_for(tmp_path: Path) -> dict[str, str]:
    server = ServerPlaces(
        repositories=(str(tmp_path / "data" / "models"),),
        private=(str(tmp_path / "temporary" / "private"),),
        bundle=str(tmp_path / "stub"),
        home="",
        working_directory="/",
    )
    model = ModelPlaces(directory=str(tmp_path / "data" / "models" / "own"), python=())
    return dict(standard_rules(server, model, as_root=False))


def test_what_lies_beside_the_models_is_reached_and_they_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    for name in ("data/models/own", "data/models/other/1", "data/weights", "temporary/private"):
        (tmp_path / name).mkdir(parents=True)
    if str(tmp_path).startswith("/tmp"):  # which models may use as a whole
        monkeypatch.setattr("pybackend.sandbox.file_rules.TEMPORARY", ())
    rules = rules_for(tmp_path)
    assert set(rules[str(tmp_path / "data" / "weights")]) == set("rx")
    assert set(rules[str(tmp_path / "data" / "models" / "own")]) == set("rwx")
    hidden = tmp_path / "data" / "models" / "other"
    assert not {str(hidden), *map(str, hidden.parents)} & set(rules) - {"/"}


def test_a_directory_for_temporary_files_is_one_rule_whatever_it_holds(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary" / "private").mkdir(parents=True)
    for number in range(100):
        (tmp_path / "temporary" / str(number)).touch()
    assert [path for path in rules_for(tmp_path) if "temporary/" in path] == []


def test_places_inside_an_exposed_place_are_not_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = ServerPlaces(
        repositories=(str(tmp_path / "models"),),
        private=(),
        bundle=str(tmp_path / "cache" / "stub"),
        home="",
        working_directory="/",
        environments=(str(tmp_path / "cache" / "environments"), "/srv/environments"),
    )
    assert exposed(server) == [str(tmp_path / "models"), str(tmp_path / "cache")]
