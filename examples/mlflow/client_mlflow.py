"""The same with MLflow's own client of deployments, and a DataFrame."""

import argparse
import warnings

import pandas as pd

with warnings.catch_warnings():  # MLflow's own
    warnings.simplefilter("ignore")
    from mlflow.deployments import get_deploy_client


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    client = get_deploy_client(f"pybackend:http://{options.url}")
    rows = pd.DataFrame({"area": [100.0, 80.5], "city": ["Bern", "Bonn"]})
    answer = client.predict("house_price", rows)
    print(f"predictions: {answer['predictions']}")
    assert answer["predictions"] == [900000.0, 322000.0]
    states = {each["name"]: each["state"] for each in client.list_deployments()}
    print(f"deployment: house_price {states['house_price']}")
    print("PASS: mlflow")


if __name__ == "__main__":
    main()
