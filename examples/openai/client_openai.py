"""The same with OpenAI's own package, which needs nothing but the server's address."""

import argparse

import openai


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    with openai.OpenAI(base_url=f"http://{options.url}/v1", api_key="none") as client:
        messages = [{"role": "user", "content": "polly wants a cracker"}]
        stream = client.chat.completions.create(model="parrot", messages=messages, stream=True)
        pieces = [piece.choices[0].delta.content or "" for piece in stream]
        print(f"stream: {pieces}")
        assert "".join(pieces) == "polly wants a cracker "
        code = None
        try:
            client.chat.completions.create(model="nobody", messages=messages)
        except openai.NotFoundError as error:
            code = error.code
        print(f"error: {code}")
        assert code == "model_not_found"
    print("PASS: openai")


if __name__ == "__main__":
    main()
