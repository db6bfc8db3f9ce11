"""What a stopping server says of what it waits for, and when it says so."""

from pybackend.repository.reports import REPEAT_S, StopReport, Unfinished

DEADLINE_S = 1030.0
END = "The server waits at most {} s for this, its exit timeout; a second Ctrl-C or SIGTERM ends it at once."


class Server:
    """What there is left to wait for."""

    def __init__(self, *unfinished: Unfinished, connections: int = 0) -> None:
        self.unfinished = list(unfinished)
        self.connections = connections
        self.report = StopReport(lambda: self.unfinished, lambda: self.connections, DEADLINE_S)


def test_it_names_the_models_their_requests_the_time_and_the_way_out():
    server = Server(Unfinished("a", "1", 2), Unfinished("b", "3", 1))
    assert server.report.line(1000.0) == (
        "Timeout 30: Found 2 model versions that have in-flight inferences: 'a' version 1 (2 requests), 'b' version 3 "
        "(1 request). " + END.format(30)
    )


def test_it_names_the_models_that_are_finalized():
    server = Server(Unfinished("a", "1", 0), Unfinished("b", "1", 1))
    assert server.report.line(1020.0) == (
        "Timeout 10: Found 1 model versions that have in-flight inferences: 'b' version 1 (1 request); 1 live models: "
        "'a' version 1 (being finalized). " + END.format(10)
    )


def test_connections_count_once_no_model_is_left():
    server = Server(Unfinished("a", "1", 1), connections=2)
    assert "connections" not in server.report.line(1000.0)
    server.unfinished.clear()
    assert server.report.line(1001.0).startswith("Timeout 29: Found 2 HTTP service connections that still ")


def test_it_says_nothing_while_there_is_nothing_to_wait_for():
    assert Server().report.line(1000.0) == ""


def test_it_says_the_same_again_after_a_while_and_a_change_at_once():
    server = Server(Unfinished("a", "1", 2))
    assert server.report.line(1000.0)
    assert server.report.line(1001.0) == ""
    assert server.report.line(1000.0 + REPEAT_S).startswith("Timeout 25: Found 1 ")
    server.unfinished = [Unfinished("a", "1", 1)]
    assert "(1 request)" in server.report.line(1001.0 + REPEAT_S)


def test_it_says_nothing_when_the_time_is_over():
    assert Server(Unfinished("a", "1", 2)).report.line(DEADLINE_S) == ""


def test_it_names_ten_models_and_counts_the_rest():
    line = Server(*(Unfinished(f"m{n:02}", "1", 1) for n in range(12))).report.line(1000.0)
    assert "Found 12 model versions" in line
    assert "'m09' version 1 (1 request) and 2 more. " in line
    assert "m10" not in line
