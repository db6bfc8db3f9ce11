"""Slots that are made when they are needed are given out as if all were there from the start."""

import random
from dataclasses import dataclass

import pytest

from pybackend.scheduler.sequence_slots import SlotPool
from pybackend.scheduler.sequences import Slot


@dataclass
class Instance:
    is_up: bool = True


def pool_of(instances, slot_count):
    pool = SlotPool(slot_count)
    for number, instance in enumerate(instances):
        pool.add(number, instance)
    return pool


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_number_goes_first(seed):
    """Held against a pool that has them all, while instances go down and come back."""
    chance = random.Random(seed)
    instances = [Instance() for _ in range(chance.randint(1, 4))]
    slot_count = chance.randint(1, 6)
    pool = pool_of(instances, slot_count)
    free = {Slot(number, index) for number in range(slot_count) for index in range(len(instances))}
    taken: list[Slot] = []
    for _ in range(300):
        match chance.randrange(4):
            case 0 if taken:
                slot = taken.pop(chance.randrange(len(taken)))
                pool.release(slot)
                free.add(slot)
            case 1:
                instance = chance.choice(instances)
                instance.is_up = not instance.is_up
                pool.revive()
            case _:
                expected = min((slot for slot in free if instances[slot.instance].is_up), default=None)
                assert pool.acquire() == expected
                if expected is not None:
                    free.remove(expected)
                    taken.append(expected)


def test_no_slot_is_made_that_nobody_takes():
    instances = [Instance(), Instance(is_up=False)]
    pool = pool_of(instances, 2**31)
    assert [pool.acquire() for _ in range(3)] == [Slot(0, 0), Slot(1, 0), Slot(2, 0)]
    assert len(pool._free) + len(pool._parked) == 2
    instances[0].is_up = False
    assert pool.acquire() is None
    assert len(pool._free) + len(pool._parked) == 2


def test_slots_of_an_instance_that_left_are_not_offered_again():
    pool = pool_of([Instance(), Instance()], 2)
    taken = [pool.acquire(), pool.acquire()]
    assert taken == [Slot(0, 0), Slot(0, 1)]
    pool.remove(0)
    for slot in taken:
        pool.release(slot)
    pool.add(2, Instance())
    assert [pool.acquire() for _ in range(5)] == [Slot(0, 1), Slot(0, 2), Slot(1, 1), Slot(1, 2), None]
