"""Which executions are so long that somebody should know."""

from pybackend.instance.executor import LONG_NS, LongExecutions


def test_each_is_noticed_once_and_what_is_usual_is_not() -> None:
    looks = [
        (1, 0, False),
        (1, LONG_NS - 1, False),
        (1, LONG_NS, True),
        (1, 3 * LONG_NS, False),
        (0, 0, False),  # it has ended: this one took three times as long
        (2, 6 * LONG_NS - 1, False),
        (2, 6 * LONG_NS, True),
        (3, LONG_NS, False),
    ]
    executions = LongExecutions()
    assert [executions.notices(number, age_ns) for number, age_ns, _ in looks] == [noticed for *_, noticed in looks]


def test_the_length_of_an_execution_that_died_says_nothing() -> None:
    executions = LongExecutions()
    assert executions.notices(1, 100 * LONG_NS)
    executions.forget()
    assert executions.notices(1, LONG_NS)
