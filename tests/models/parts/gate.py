"""Places at which a model waits for its test, and marks that it leaves."""

import os
import time


def pass_gate(directory, name):
    """Say that this place is reached, and wait until the test opens the gate."""
    with open(os.path.join(directory, name + ".reached"), "a") as reached:
        reached.write("x")
    while not os.path.exists(os.path.join(directory, name + ".open")):
        time.sleep(0.005)


def mark(directory, name):
    """Leave a file that tells how often this place was passed."""
    with open(os.path.join(directory, name), "a") as file:
        file.write("x")
