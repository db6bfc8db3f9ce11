"""Large documents of the routes of OpenAI and MLflow leave the event loop to others: counted in its turns."""

import asyncio

import pytest

from pybackend.engine.engine import ModelAdmission
from pybackend.frontend.http.arrival import Arrival
from tests.integration.http.conftest import run
from tests.integration.http.test_turns import MIB, client_of, turns_until
from tests.support.connection import post
from tests.support.repositories import IDENTITY, identity_config, write_model

__all__ = ["run"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("turns")
    write_model(repository, "numbers", IDENTITY, identity_config("TYPE_INT8"))
    return repository


def long_prompt():
    return post("/v1/completions", b'{"model":"numbers","prompt":"%b"}' % (b"word " * MIB))


def one_record():
    members = b",".join(b'"%d":1' % number for number in range(450_000))
    return post("/v2/models/numbers/invocations", b'{"dataframe_records":[{%b}]}' % members)


def table():
    return post("/v2/models/numbers/invocations", b'{"inputs":{"IN":[%b7]}}' % (b"7," * (MIB - 1)))


def columns_of_csv():
    body = b",".join(b"%d" % number for number in range(60_000)) + b"\n" + b",\n" * 90_000
    return post("/v2/models/numbers/invocations", body, {"Content-Type": "text/csv"})


@pytest.mark.parametrize(
    ("request_", "most_turns"), [(long_prompt, None), (one_record, None), (table, None), (columns_of_csv, 20)]
)
def test_documents_of_other_routes(run, monkeypatch, repository, request_, most_turns):
    """From the last byte to a refusal or a submission. What can be refused by its first line is."""
    submitted, arrived = [], []
    submit, whole = ModelAdmission.submit, Arrival.whole

    async def noted(*args):
        body = await whole(*args)
        arrived.append(body)
        return body

    monkeypatch.setattr(ModelAdmission, "submit", lambda *args: submitted.append(submit(*args)) or submitted[-1])
    monkeypatch.setattr(Arrival, "whole", noted)

    async def check():
        async with client_of(repository) as (client, _, engine):
            await asyncio.get_running_loop().sock_sendall(client, request_())
            await turns_until(lambda: arrived)
            turns = await turns_until(lambda: submitted or engine.refusals.counts)
            assert turns > 20 if most_turns is None else turns < most_turns

    run(check())
