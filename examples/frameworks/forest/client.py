"""Sends a table of applicants to the pipeline and compares the answers with those of the libraries."""

import argparse

import numpy as np
import tritonclient.http as httpclient
from make_model import invent_applicants, train


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    table, _ = invent_applicants(5, seed=1)
    columns = {
        "INCOME": (table[["income"]].to_numpy(), "FP64"),
        "DEBT": (table[["debt"]].to_numpy(), "FP64"),
        "HOUSING": (table[["housing"]].to_numpy(object), "BYTES"),
    }
    with httpclient.InferenceServerClient(options.url) as client:
        inputs = [
            httpclient.InferInput(name, array.shape, datatype).set_data_from_numpy(array)
            for name, (array, datatype) in columns.items()
        ]
        result = client.infer("loans", inputs)
    risks, decisions = result.as_numpy("RISK")[:, 0], result.as_numpy("DECISION")[:, 0]

    for applicant, risk, decision in zip(table.itertuples(), risks, decisions, strict=True):
        print(f"{applicant.income:5.0f} {applicant.debt:6.0f} {applicant.housing:4} -> {risk:.3f} {decision.decode()}")
    features, forest = train()
    expected = forest.inplace_predict(features.transform(table).astype(np.float32))
    np.testing.assert_array_equal(risks, expected)
    assert set(decisions) <= {b"approve", b"review", b"decline"}
    print("PASS: forest")


if __name__ == "__main__":
    main()
