"""Asks a model as clients of `mlflow models serve` do: with rows of a table, in JSON and in CSV."""

import argparse
import http.client
import json

PATH = "/v2/models/house_price/invocations"


def ask(url, body, content_type):
    connection = http.client.HTTPConnection(url, timeout=60)
    connection.request("POST", PATH, body, {"content-type": content_type, "connection": "close"})
    with connection.getresponse() as reply:
        return json.load(reply)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    table = {"columns": ["city", "area"], "data": [["Bern", 100], ["Bonn", 80.5]]}
    answer = ask(options.url, json.dumps({"dataframe_split": table}), "application/json")
    print(f"JSON: {answer}")
    assert answer == {"predictions": [900000.0, 322000.0]}
    answer = ask(options.url, "area,city\n10,Bern\n", "text/csv")
    print(f"CSV: {answer}")
    assert answer == {"predictions": [90000.0]}
    answer = ask(options.url, json.dumps({"inputs": {"area": ["large"], "city": ["Bern"]}}), "application/json")
    print(f"error: {answer['message']}")
    assert answer["error_code"] == "BAD_REQUEST"
    print("PASS: mlflow")


if __name__ == "__main__":
    main()
