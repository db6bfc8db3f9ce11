"""The table of resources: who may execute, who waits, and who comes next."""

import asyncio

import pytest

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.instance.resources import ResourceGate, ResourceTable
from pybackend.modelconfig.schema import RateLimit

ANYWHERE = ("R", None)


class Instance:
    """Has so much to execute, and executes whenever it gets a turn and its gate is open."""

    def __init__(self, table, needs, done, *, name="", priority=1, work=1):
        self.name, self.done, self.work = name, done, work
        self.gate = ResourceGate(table, RateLimit(needs, priority), self.on_turn)
        table.add(self.gate)

    def on_turn(self):
        if self.work and self.gate.is_open:
            self.work -= 1
            self.gate.begin()
            self.done.append(self.name)

    def end(self):
        self.gate.end()
        self.on_turn()


def run(check):
    """Runs ``check``, which yields where the loop is to take its turn."""

    async def go():
        for _ in check:
            await asyncio.sleep(0)

    asyncio.run(go())


def test_as_many_as_there_are_resources():
    def check():
        table, done = ResourceTable({ANYWHERE: 2}), []
        one, two, three = (Instance(table, {ANYWHERE: 1}, done, name=name) for name in "abc")
        for each in (one, two, three):
            each.on_turn()
        assert done == ["a", "b"]
        two.end()
        assert done == ["a", "b"]  # the next comes with the loop's next turn
        yield
        assert done == ["a", "b", "c"]

    run(check())


def test_without_limits_there_is_what_the_largest_needs():
    table, done = ResourceTable({}), []
    small, large = Instance(table, {ANYWHERE: 1}, done, name="s"), Instance(table, {ANYWHERE: 3}, done, name="l")
    large.on_turn()
    small.on_turn()
    assert done == ["l"]


def test_twice_the_priority_is_half_the_turns():
    def check():
        table, done = ResourceTable({ANYWHERE: 1}), []
        both = {
            name: Instance(table, {ANYWHERE: 1}, done, name=name, priority=priority, work=100)
            for name, priority in (("a", 1), ("b", 2))
        }
        for each in both.values():
            each.on_turn()
        while len(done) < 30:
            before = len(done)
            both[done[-1]].end()
            yield
            assert len(done) == before + 1
        assert done.count("a") == 20

    run(check())


def test_who_needs_much_is_not_passed_for_ever():
    def check():
        table, done = ResourceTable({ANYWHERE: 2}), []
        one, two = (Instance(table, {ANYWHERE: 1}, done, name=name, work=100) for name in "ab")
        large = Instance(table, {ANYWHERE: 2}, done, name="L")
        for each in (one, two, large):
            each.on_turn()
        one.end()
        yield
        assert done == ["a", "b"]  # it could execute again, and lets the other gather what it needs
        two.end()
        yield
        assert done == ["a", "b", "L"]

    run(check())


def test_other_resources_are_nobody_elses_business():
    table, done = ResourceTable({ANYWHERE: 1, ("S", None): 1}), []
    one, other = Instance(table, {ANYWHERE: 1}, done, name="r"), Instance(table, {("S", None): 1}, done, name="s")
    one.on_turn()
    other.on_turn()
    assert done == ["r", "s"]


def test_devices_are_counted_apart():
    table, done = ResourceTable({("R", None): 1, ("R", 1): 2}), []
    first = [Instance(table, {("R", 0): 1}, done, name="0") for _ in range(2)]
    second = [Instance(table, {("R", 1): 1}, done, name="1") for _ in range(2)]
    for each in (*first, *second):
        each.on_turn()
    assert done == ["0", "1", "1"]


def test_who_is_removed_stands_in_nobodys_way():
    def check():
        table, done = ResourceTable({ANYWHERE: 2}), []
        holder, large, small = (
            Instance(table, {ANYWHERE: count}, done, name=name) for name, count in (("h", 1), ("L", 2), ("s", 1))
        )
        holder.on_turn()
        large.on_turn()
        table.remove(large.gate)
        small.on_turn()
        yield
        assert done == ["h", "s"]

    run(check())


@pytest.mark.parametrize(
    ("limits", "needs", "text"),
    [
        ({ANYWHERE: 1}, [{ANYWHERE: 2}], 'Resource count for "R" is limited to 1 which will prevent scheduling'),
        ({("R", 0): 1}, [{("R", 0): 2}], 'Resource count for "R" is limited to 1'),
        ({}, [{ANYWHERE: 1}, {("R", 0): 1}], 'Resource "R" is present as both global and device-specific'),
        ({}, [{ANYWHERE: 1, ("R", 0): 1}], 'Resource "R" is present as both global and device-specific'),
    ],
)
def test_what_could_never_execute_is_refused(limits, needs, text):
    table = ResourceTable(limits)
    *earlier, last = needs
    for each in earlier:
        Instance(table, each, [])
    with pytest.raises(ModelLoadError, match=text) as caught:
        Instance(table, last, [])
    assert caught.value.code is ErrorCode.INVALID_ARG
