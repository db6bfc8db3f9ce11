"""Tests of the trees that the console makes of a server's traces."""

from __future__ import annotations

from typing import Any

from pybackend_tools.console.traces import Part, Step, steps_of, traces_in


def document(number: int, parent: int | None, model: str, *moments: tuple[str, int], **more: str) -> dict[str, Any]:
    timestamps = [{"name": name, "ns": ns} for name, ns in moments]
    about = {"model_version": "1", "request_id": "", "error": "", "timestamps": timestamps}
    return {"id": number, "parent_id": parent, "model_name": model, **about, **more}


def run(begin_ns: int, queued_ns: int, computed_ns: int) -> list[tuple[str, int]]:
    """The moments of a request that waits and computes for so long."""
    started_ns = begin_ns + queued_ns
    return [
        ("REQUEST_START", begin_ns), ("QUEUE_START", begin_ns), ("COMPUTE_START", started_ns), ("COMPUTE_INPUT_END", started_ns),
        ("COMPUTE_OUTPUT_START", started_ns + computed_ns), ("COMPUTE_END", started_ns + computed_ns), ("REQUEST_END", started_ns + computed_ns)
    ]  # fmt: skip


def test_a_trace_is_divided_into_parts_without_gaps() -> None:
    moments = [
        ("HTTP_RECV_START", 0), ("REQUEST_START", 10), ("QUEUE_START", 20), ("COMPUTE_START", 50), ("COMPUTE_INPUT_END", 60),
        ("COMPUTE_OUTPUT_START", 90), ("COMPUTE_END", 95), ("INFER_RESPONSE_COMPLETE", 96), ("HTTP_SEND_END", 100),
    ]  # fmt: skip
    (trace,) = traces_in([document(1, None, "m", *moments)])
    assert trace.parts == [
        Part("host", 0, 20),
        Part("queue", 20, 50),
        Part("input", 50, 60),
        Part("compute", 60, 90),
        Part("output", 90, 95),
        Part("host", 95, 100),
    ]


def test_the_steps_of_an_ensemble_are_no_queue_and_a_request_that_never_ran_is_one() -> None:
    moments = [("REQUEST_START", 0), ("QUEUE_START", 1)]
    (steps,) = traces_in([document(1, None, "m", *moments, ("INFER_RESPONSE_COMPLETE", 9), ("REQUEST_END", 9))])
    (dropped,) = traces_in([document(1, None, "m", *moments, ("REQUEST_END", 9), error="queue full")])
    assert [each.name for each in steps.parts] == ["host"]
    assert [each.name for each in dropped.parts] == ["host", "queue"]


def test_calls_lie_below_their_callers_in_the_order_of_their_beginnings() -> None:
    documents = [
        document(4, 2, "deep", *run(12, 0, 1)),
        document(3, 1, "late", *run(20, 0, 1)),
        document(2, 1, "early", *run(10, 0, 5), namespace="team"),
        document(9, 8, "of a caller that is no longer kept", *run(0, 0, 1)),
        document(1, None, "caller", *run(0, 0, 30)),
        document(5, None, "newer", *run(40, 0, 1)),
        document(6, None, "without a moment"),
    ]
    newest, caller = traces_in(documents)
    assert newest.model == "newer"
    assert [(depth, each.number) for depth, each in caller.walk()] == [(0, 1), (1, 2), (2, 4), (1, 3)]
    assert caller.calls[0].model != "early", "its full name has the namespace"


def test_steps_are_means_over_requests() -> None:
    million = 1_000_000
    documents = [
        document(1, None, "caller", *run(0, 0, 8 * million)),
        document(2, 1, "called", *run(million, million, 2 * million)),
        document(3, 1, "called", *run(5 * million, 0, million)),
        document(4, None, "caller", *run(20 * million, 2 * million, 4 * million)),
    ]
    assert steps_of(traces_in(documents), 2) == Step(
        "caller", 1.0, 7.0, 1.0, 6.0, [Step("called", 1.0, 2.0, 0.5, 1.5, [])]
    )
