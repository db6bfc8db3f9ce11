"""A memory with a bound."""

from pybackend.recurring import Recurring


def test_it_holds_so_many_entries_and_no_more():
    memory = Recurring(10)
    for number in range(100):
        memory.remember(number, -number)
        assert len(memory) == min(number + 1, 10)
        assert memory[number] == -number
    memory.clear()
    memory.remember(1, 2)
    assert memory == {1: 2}


def test_what_takes_too_many_bytes_is_not_remembered():
    memory = Recurring(10, largest_bytes=4)
    for nbytes in (4, 5):
        memory.remember(nbytes, "x", nbytes)
    assert memory == {4: "x"}


def test_what_comes_once_is_not_worth_a_place():
    memory = Recurring(10)
    assert [memory.comes_again(b"a") for _ in range(3)] == [False, True, True]
    assert not any(memory.comes_again(number) for number in range(1000))
    assert sum(memory.comes_again(number) for number in range(1000)) <= 40
    memory.clear()
    assert not memory.comes_again(b"a")


def test_a_known_entry_is_replaced_and_pushes_out_nothing():
    memory = Recurring(3)
    for number in range(3):
        memory.remember(number, 0)
    memory.remember(1, 1)
    assert memory == {0: 0, 1: 1, 2: 0}


def test_most_of_what_recurs_is_found_even_if_there_is_too_much_of_it():
    memory = Recurring(100)
    found = 0
    for _ in range(50):
        for number in range(101):
            if number in memory:
                found += 1
            else:
                memory.remember(number, None)
    assert found > 49 * 101 * 0.8
