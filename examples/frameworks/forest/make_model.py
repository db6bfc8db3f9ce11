"""Trains the pipeline on invented applicants: scikit-learn prepares the columns, XGBoost judges them."""

from pathlib import Path

import numpy as np
import pandas as pd
import skops.io
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

MODELS = Path(__file__).resolve().parent / "model_repository"


def invent_applicants(count, seed):
    """A table of applicants, and whether each of them failed to pay."""
    random = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "income": random.uniform(1000, 9000, count),
            "debt": random.uniform(0, 50000, count),
            "housing": random.choice(["own", "rent", "free"], count),
        }
    )
    return table, (table["debt"] > 5 * table["income"] * np.where(table["housing"] == "rent", 0.7, 1)).to_numpy(int)


def train():
    """The two parts of the pipeline."""
    table, failed = invent_applicants(2000, seed=0)
    features = ColumnTransformer(
        [("amounts", StandardScaler(), ["income", "debt"]), ("kinds", OneHotEncoder(), ["housing"])]
    )
    matrix = xgboost.DMatrix(features.fit_transform(table).astype(np.float32), failed)
    return features, xgboost.train({"objective": "binary:logistic", "max_depth": 4, "nthread": 1}, matrix, 20)


def main():
    features, forest = train()
    for model in ("loan_features", "loan_forest"):
        (MODELS / model / "1").mkdir(parents=True, exist_ok=True)
    skops.io.dump(features, MODELS / "loan_features" / "1" / "model.skops")
    forest.save_model(MODELS / "loan_forest" / "1" / "xgboost.json")


if __name__ == "__main__":
    main()
