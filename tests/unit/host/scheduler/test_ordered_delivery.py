"""Lines of requests: responses leave in their order, and nobody waits behind a request that has left its line."""

import random

from pybackend.inference.pending import PendingRequest, RequestHolder, to_sender
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.scheduler.ordered_delivery import DeliveryLine, OrderedDelivery


class Scene:
    """Lines, requests that remember what they were answered, and responses whose memory is counted."""

    def __init__(self, lines=1):
        self.delivery = OrderedDelivery(to_sender)
        self.lines = [DeliveryLine(self.delivery) for _ in range(lines)]
        self.delivered = []
        self.released = []

    def request(self, name, line=None, receive=None):
        def remember(response):
            self.delivered.append(response.parameters["text"])
            response.release()

        pending = PendingRequest(InferenceRequest("m", id=name), receive or remember, RequestHolder())
        if line is not None:
            self.lines[line].add(pending)
        return pending

    def respond(self, pending, text, *, final=True):
        response = InferenceResponse("m", "1", pending.request.id, final=final)
        response.parameters, response.on_release = {"text": text}, lambda: self.released.append(text)
        self.delivery.on_response(pending, response)


def test_each_line_has_its_own_order_and_requests_in_no_line_wait_for_nobody():
    scene = Scene(lines=2)
    a, b = scene.request("a", 0), scene.request("b", 0)
    other, loose = scene.request("other", 1), scene.request("loose")
    scene.respond(b, "b")
    assert scene.delivered == []
    scene.respond(other, "other")
    scene.respond(loose, "loose")
    assert scene.delivered == ["other", "loose"]
    scene.respond(a, "a1", final=False)
    scene.respond(a, "a2")
    assert scene.delivered == ["other", "loose", "a1", "a2", "b"]
    assert not scene.delivery.lines


def test_a_stream_holds_back_those_behind_it_and_is_not_held_back_itself():
    scene = Scene()
    a, b = scene.request("a", 0), scene.request("b", 0)
    scene.respond(b, "b1", final=False)
    scene.respond(a, "a1", final=False)
    scene.respond(b, "b2", final=False)
    assert scene.delivered == ["a1"]
    scene.respond(a, "a2")
    assert scene.delivered == ["a1", "a2", "b1", "b2"]
    scene.respond(b, "b3")
    assert scene.delivered == ["a1", "a2", "b1", "b2", "b3"]


def test_a_request_that_leaves_its_line_drops_what_was_held_back_and_lets_the_others_pass():
    scene = Scene(lines=2)
    a, b, c = (scene.request(name, 0) for name in "abc")
    scene.respond(b, "b1", final=False)
    scene.respond(c, "c")
    scene.lines[0].withdraw(b)
    assert (scene.delivered, scene.released) == ([], ["b1"])
    scene.lines[0].withdraw(a)
    assert scene.delivered == ["c"]
    scene.respond(a, "a")  # it is answered where it is now
    scene.lines[1].add(b)
    scene.respond(b, "b2")
    assert scene.delivered == ["c", "a", "b2"]
    assert not scene.delivery.lines


def test_a_receiver_that_fails_costs_nobody_else_an_answer():
    def fail(_response):
        raise ValueError("the receiver's own fault")

    scene = Scene()
    a, b, c = scene.request("a", 0), scene.request("b", 0, receive=fail), scene.request("c", 0)
    scene.respond(c, "c")
    scene.respond(b, "b")
    scene.respond(a, "a")
    assert scene.delivered == ["a", "c"]
    assert sorted(scene.released) == ["a", "b", "c"]
    assert not scene.delivery.lines


def test_a_receiver_may_change_the_line():
    scene = Scene()

    def withdraw_b(response):
        response.release()
        scene.lines[0].withdraw(b)
        scene.respond(d, "d")

    a = scene.request("a", 0, receive=withdraw_b)
    b, c, d = (scene.request(name, 0) for name in "bcd")
    scene.respond(c, "c")
    scene.respond(b, "b", final=False)
    scene.respond(a, "a")
    assert scene.delivered == ["c", "d"]
    assert sorted(scene.released) == ["a", "b", "c", "d"]
    assert not scene.delivery.lines


def test_whatever_happens_the_order_is_that_of_the_requests():
    chance = random.Random(7)
    for _ in range(200):
        scene = Scene()
        waiting = [scene.request(str(number), 0) for number in range(6)]
        left = set()
        while waiting:
            pending = chance.choice(waiting)
            number = int(pending.request.id)
            if chance.random() < 0.2:
                scene.lines[0].withdraw(pending)
                left.add(number)
                waiting.remove(pending)
            else:
                final = chance.random() < 0.5
                scene.respond(pending, number, final=final)
                if final:
                    waiting.remove(pending)
        assert scene.delivered == sorted(scene.delivered)
        assert left.union(scene.delivered) == set(range(6))
        assert not scene.delivery.lines
