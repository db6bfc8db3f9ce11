"""Trains a pipeline that tells praise from complaints: texts in, a word and probabilities out."""

from pathlib import Path

import skops.io
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

PRAISE = ["a good book", "fast and good", "very good service", "good food, nice people", "nice and fast"]
COMPLAINTS = ["a bad book", "slow and bad", "very bad service", "bad food, rude people", "rude and slow"]


def train():
    """The pipeline."""
    texts = PRAISE + COMPLAINTS
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["praise"] * 5 + ["complaint"] * 5)


def main():
    path = Path(__file__).resolve().parent / "model_repository" / "opinions" / "1" / "model.skops"
    path.parent.mkdir(parents=True, exist_ok=True)
    skops.io.dump(train(), path)


if __name__ == "__main__":
    main()
