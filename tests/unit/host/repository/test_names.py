"""The names of repositories as namespaces."""

import pytest

from pybackend.repository.names import Namespaces

A, B, BUCKET = "/srv/team_a/models", "/srv/team_b/models", "s3://bucket/models"


@pytest.mark.parametrize(
    ("name", "split"),
    [
        (f"{A}::m", (A, "m")),
        (f"{A}::x::m", (A, "x::m")),
        (f"{BUCKET}::m", (BUCKET, "m")),
        ("/srv/team_c::m", ("", "/srv/team_c::m")),
        ("team_a::m", ("", "team_a::m")),
        ("m", ("", "m")),
    ],
)
def test_a_full_name_begins_with_a_namespace(name: str, split: tuple[str, str]) -> None:
    assert Namespaces([A, B, BUCKET]).split(name) == split


@pytest.mark.parametrize(
    ("paths", "part", "path"),
    [
        ([A, B], "team_a", A),
        ([A, B], "models", None),
        ([A, B], "srv", None),
        ([A, BUCKET], "bucket", BUCKET),
        ([A, BUCKET], "s3:", None),
        (["/srv/models", "/srv/models/inner"], "models", "/srv/models"),
        (["/srv/models", "/srv/models/inner"], "inner", "/srv/models/inner"),
        (["/srv/a", "/opt/a/b"], "a", "/srv/a"),
        (["/"], "", None),
    ],
)
def test_a_part_of_a_path_stands_for_it_if_no_other_has_it(paths: list[str], part: str, path: str | None) -> None:
    assert Namespaces(paths).expand(f"{part}::m") == (f"{part}::m" if path is None else f"{path}::m")


def test_a_name_is_looked_for_in_all_namespaces() -> None:
    spaces = Namespaces([A, B, A])
    assert spaces.named("m", {f"{A}::m", f"{B}::m", f"{BUCKET}::m", "m"}) == [f"{A}::m", f"{B}::m"]
