"""The sentences of the doctor's findings."""

from pybackend_tools.doctor.finding import not_in_force


def test_each_missing_layer_is_a_sentence():
    assert not_in_force({"uid": "run `chmod o+x /root`", "syscalls": "the kernel has no filter"}) == [
        "Layer 'uid' is not in force: run `chmod o+x /root`.",
        "Layer 'syscalls' is not in force: the kernel has no filter.",
    ]
