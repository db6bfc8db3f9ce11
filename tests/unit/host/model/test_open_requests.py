"""What a version's end waits for: open requests, of clients or of other models, and those who hold it."""

import asyncio

import pytest

from pybackend.inference.request import InferenceRequest
from pybackend.model.open_requests import OpenRequests

AT_ONCE_S = 0.0
DEADLINE_S = 60


def request(*, is_inner=False):
    made = InferenceRequest("m")
    made.is_inner = is_inner
    return made


def waits_until(what, end):
    """True if something cannot be waited for before ``end`` is called, and can be afterwards."""

    async def main():
        if await what(AT_ONCE_S):
            return False
        waiting = asyncio.create_task(what(DEADLINE_S))
        await asyncio.sleep(0)
        end()
        return await waiting

    return asyncio.run(main())


@pytest.mark.parametrize("is_inner", [False, True])
def test_the_drain_waits_for_every_request(is_inner):
    open_requests, one = OpenRequests(), request(is_inner=is_inner)
    open_requests.enter(one)
    assert waits_until(open_requests.drained_within, lambda: open_requests.leave(one))


def test_the_drain_waits_for_those_who_hold_the_version():
    open_requests = OpenRequests()
    assert waits_until(open_requests.drained_within, open_requests.hold())


def test_the_drain_waits_for_the_rest():
    open_requests, rest = OpenRequests(), {"a step"}

    def end():
        rest.clear()
        open_requests.wake()

    assert waits_until(lambda timeout_s: open_requests.drained_within(timeout_s, lambda: not rest), end)


def test_clients_are_answered_while_requests_of_models_are_open():
    open_requests, client = OpenRequests(), request()
    open_requests.enter(request(is_inner=True))
    open_requests.enter(client)
    assert waits_until(open_requests.clients_answered_within, lambda: open_requests.leave(client))
    assert open_requests.count == 1


def test_only_models_are_admitted_while_somebody_holds_the_version_and_it_drains():
    open_requests, inner = OpenRequests(), request(is_inner=True)
    assert not open_requests.admits(inner)
    let_go = open_requests.hold()
    assert open_requests.admits(inner)
    assert not open_requests.admits(request())
    assert not asyncio.run(open_requests.drained_within(AT_ONCE_S))
    assert not open_requests.admits(inner)
    let_go()
    assert open_requests.holds == 0
