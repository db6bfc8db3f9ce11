"""Calls scale and count_up with pybackend_client: arrays by name, a typed error, and a stream."""

import argparse

from pybackend_client import Client, InvalidRequestError, WrongInputError


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")

    with Client(parser.parse_args().url, timeout_s=30) as client:
        answer = client("scale", parameters={"factor": 10}).infer(X=[1, 2, 3])
        (values,) = answer.values()
        print(f"scale: {values.tolist()}")
        assert values.tolist() == [10, 20, 30]

        refusals = []
        for inputs in ({}, {"Y": [1]}):
            try:
                client("scale").infer(**inputs)
            except (InvalidRequestError, WrongInputError) as error:
                refusals.append(type(error).__name__)
                print(f"{refusals[-1]}: {error}")
        assert refusals == ["InvalidRequestError", "WrongInputError"]

        numbers = [int(each["NUMBER"].item()) for each in client("count_up").stream(LIMIT=[3])]
        print(f"count_up sent {numbers}")
        assert numbers == [1, 2, 3]
    print("PASS: clients")


if __name__ == "__main__":
    main()
