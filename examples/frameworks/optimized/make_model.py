"""Trains a forest, and lets `pybackend optimize` make the model from the form that answers fastest."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import skops.io
from sklearn.ensemble import RandomForestClassifier

HERE = Path(__file__).resolve().parent
ROWS = np.random.default_rng(0).random((400, 4))


def train():
    """The forest: whether the first two of four numbers are more than 1 together."""
    return RandomForestClassifier(100, max_depth=4, random_state=0).fit(ROWS, ROWS[:, 0] + ROWS[:, 1] > 1)


def main():
    skops.io.dump(train(), HERE / "visitors.skops")
    np.savez(HERE / "rows.npz", input=ROWS[:50])
    if (HERE / "model_repository" / "visitors").exists():
        return  # an earlier run has found it
    command = [sys.executable, "-m", "pybackend", "optimize", "visitors.skops", "--forms=treelite", "--data=rows.npz"]
    flags = ["--repository=model_repository", "--output=report", "--window=0.1", "--force"]
    subprocess.run([*command, *flags], check=True, cwd=HERE)


if __name__ == "__main__":
    main()
