"""Chats with a model by OpenAI's API, without OpenAI's package: a whole answer, then a stream of events."""

import argparse
import http.client
import json


def ask(url, **body):
    connection = http.client.HTTPConnection(url, timeout=60)
    headers = {"content-type": "application/json", "connection": "close"}
    connection.request("POST", "/v1/chat/completions", json.dumps({"model": "parrot", **body}), headers)
    return connection.getresponse()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()
    messages = [{"role": "user", "content": "polly wants a cracker now"}]

    with ask(options.url, messages=messages, stop=" now") as reply:
        answer = json.load(reply)
    choice = answer["choices"][0]
    print(f"answer: {choice['message']['content']!r}, {choice['finish_reason']}, usage {answer['usage']}")
    assert choice["message"]["content"] == "polly wants a cracker"

    pieces = []
    with ask(options.url, messages=messages, max_tokens=3, stream=True) as reply:
        for line in reply:
            event = line.decode().strip().removeprefix("data: ")
            if event and event != "[DONE]":
                pieces.append(json.loads(event)["choices"][0]["delta"].get("content", ""))
    print(f"stream: {pieces}")
    assert "".join(pieces) == "polly wants a "
    print("PASS: openai")


if __name__ == "__main__":
    main()
