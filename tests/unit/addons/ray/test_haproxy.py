"""The paths of requests through HAProxy."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pybackend_addons.ray.cluster import Pool, Report
from tests.unit.addons.ray.conftest import DEADLINE_S, Entrance, cluster_with, started


@pytest.fixture(scope="module")
def entrance() -> Iterator[Entrance]:
    with started(cluster_with(), "paths") as found:
        yield found


def test_requests_go_to_replicas_and_changes_to_the_coordinator(entrance: Entrance) -> None:
    entrance.apply("one", "two")
    entrance.wait_for("one", "two")
    to_coordinator = [
        ("/v2/repository/models/a/load", b"{}"), ("/v2/repository/models/ns%3A%3Aa/unlo%61d", b"{}"), ("/v2/logging", b"{}"),
        ("/v2/models/a/trace/setting", b"{}"), ("/v2/models/a/versions/1/stats", b""), ("/v2/health/ready", b""),
    ]  # fmt: skip
    assert [entrance.ask(path, body)[1]["name"] for path, body in to_coordinator] == ["coordinator"] * 6
    for path, body in (("/v2/logging", b""), ("/v2/repository/index", b"{}"), ("/v2/models/a/infer", b"{}")):
        assert entrance.ask(path, body)[1]["name"] in {"one", "two"}


def test_a_key_of_the_client_does_not_pass(entrance: Entrance) -> None:
    entrance.apply("one", "two")
    entrance.wait_for("one", "two")
    status, document = entrance.ask("/v2/models/a", x_api_key="guess")
    assert (status, document["key"]) == (200, entrance.cluster.key)


def test_a_question_for_readiness_says_that_no_replica_is_reached(entrance: Entrance) -> None:
    entrance.apply("one", "two")
    entrance.wait_for("one", "two")
    assert "unreached" not in entrance.ask("/v2/health/ready")[1]
    entrance.apply()
    end = time.monotonic() + DEADLINE_S
    while entrance.ask("/v2/models/a")[0] != 503:
        assert time.monotonic() < end
    assert entrance.ask("/v2/health/ready")[1]["unreached"] == "yes"


def test_shared_memory_is_refused(entrance: Entrance) -> None:
    status, document = entrance.ask("/v2/systemsharedmemory/region/a/register", b"{}")
    assert status == 400
    assert "each request may go to another machine" in document["error"]


def test_sequences_stay_where_they_began(entrance: Entrance) -> None:
    entrance.apply("one", "two", sequences=("counter",))
    entrance.wait_for("one", "two")
    began = {number: entrance.continue_sequence(number) for number in (*range(1, 20), "name")}
    assert set(began.values()) == {"one", "two"}
    assert {number: entrance.continue_sequence(number) for number in began} == began
    entrance.apply("one", "two", leaving=frozenset({1}), sequences=("counter",))
    entrance.wait_for("two")
    assert {number: entrance.continue_sequence(number) for number in began} == began
    assert {entrance.continue_sequence(number) for number in range(100, 110)} == {"two"}


def test_a_sequence_that_cannot_be_read_is_refused(entrance: Entrance) -> None:
    entrance.apply("one", "two", sequences=("counter",))
    entrance.wait_for("one", "two")
    long = json.dumps({"inputs": [{"data": "x" * 100_000}], "parameters": {"sequence_id": 5}}).encode()
    escaped = b'{"inputs": [], "parameters": {"sequence_id": "a\\u0062"}}'
    compressed = {"content_encoding": "gzip"}
    for body, headers in ((long, {}), (escaped, {}), (b"{}", compressed), (gzip.compress(long), compressed)):
        status, document = entrance.ask("/v2/models/counter/infer", body, **headers)
        assert (status, "the entrance must choose a replica, and cannot read" in document["error"]) == (400, True)
    assert entrance.ask("/v2/models/other/infer", long)[0] == 200


def test_requests_find_the_pool_of_their_model() -> None:
    cluster = cluster_with(pools=(Pool("alive", ("res:net",), max_replicas=2),))
    with started(cluster, "pools") as entrance:
        entrance.apply("one")
        entrance.wait_for("one")
        report = Report("two", "n", "127.0.0.1", entrance.ports["two"], entrance.ports["two"], 1, "1", pool="alive")
        first = cluster.seats["alive"][0]
        roster = entrance.roster("one")
        asyncio.run(entrance.runtime.apply(replace(roster, places={**roster.places, first: report})))
        end = time.monotonic() + DEADLINE_S
        while entrance.ask("/v2/models/res%3Anet")[1].get("name") != "two":
            assert time.monotonic() < end
        paths = (
            "/v2/models/res%3Anet/infer",
            "/v2/models/res%3Anet/versions/1/ready",
            "/v2/repository/models/res%3Anet/traffic",
        )
        assert {entrance.ask(path)[1]["name"] for path in paths} == {"two"}
        assert {entrance.ask(path)[1]["name"] for path in ("/v2/models/other/infer", "/v2")} == {"one"}
        assert entrance.ask("/v2/repository/index", b"{}")[1]["name"] == "coordinator"
        asyncio.run(entrance.runtime.apply(roster))
        while (answer := entrance.ask("/v2/models/res%3Anet"))[0] == 200:
            assert time.monotonic() < end
        assert answer == (503, {"error": "no replica can take this request now: try again"})


def test_without_replicas_the_answer_says_so(entrance: Entrance) -> None:
    entrance.apply()
    end = time.monotonic() + DEADLINE_S
    while (answer := entrance.ask("/v2/models/a"))[0] == 200:
        assert time.monotonic() < end
    assert answer == (503, {"error": "no replica can take this request now: try again"})


def test_an_entrance_takes_the_ports_of_another_one_over() -> None:
    """It has replicas from its first connection on, and those of the other one stay until their next answer."""
    cluster = cluster_with()
    with started(cluster, "before") as before:
        before.apply("one")
        before.wait_for("one")
        kept = http.client.HTTPConnection("127.0.0.1", cluster.http_port, timeout=DEADLINE_S)
        kept.request("GET", "/v2/models/a")
        kept.getresponse().read()
        with contextlib.closing(kept), started(cluster, "next", before):
            asyncio.run(before.runtime.stop_listening())
            assert {before.ask("/v2/models/a")[1].get("name") for _ in range(20)} == {"one"}
            assert asyncio.run(before.runtime.connections()) == 1
            kept.request("GET", "/v2/models/a")
            answer = kept.getresponse()
            assert (json.loads(answer.read())["name"], answer.headers["connection"]) == ("one", "close")
            assert asyncio.run(before.runtime.connections()) == 0


def test_load_balancers_learn_whether_an_entrance_has_replicas(entrance: Entrance) -> None:
    def status() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", entrance.cluster.http_port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("GET", "/-/healthz")
            return connection.getresponse().status

    entrance.apply("one")
    end = time.monotonic() + DEADLINE_S
    while status() != 200:  # until HAProxy has checked it
        assert time.monotonic() < end
    entrance.apply()
    assert status() == 503
