"""Sends texts to word_count and looks for them on the server's metrics page."""

import argparse
import urllib.request

import numpy as np
import tritonclient.http as httpclient

TEXTS = ["one", "one two three", "", "word " * 250]
LABELS = 'model="word_count",version="1"'


def count_words(client, text):
    tensor = np.array([text], dtype=np.object_)
    sent = httpclient.InferInput("TEXT", tensor.shape, "BYTES").set_data_from_numpy(tensor)
    return int(client.infer("word_count", [sent]).as_numpy("WORDS")[0])


def read_metrics(address):
    """The lines of the metrics page that the model has put there: sample -> value."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if line.startswith("word_count_")]
    return {sample: float(value) for sample, _, value in samples}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    parser.add_argument("--metrics", default="localhost:8002", help="host:port of its metrics (default: %(default)s)")
    options = parser.parse_args()

    before = read_metrics(options.metrics)
    with httpclient.InferenceServerClient(options.url) as client:
        for text in TEXTS:
            words = count_words(client, text)
            print(f"{words:3} words: {text[:20]!r}")
            assert words == len(text.split())
    after = read_metrics(options.metrics)

    expected = {
        f'word_count_texts_total{{found="words",{LABELS}}}': 3,
        f'word_count_texts_total{{found="nothing",{LABELS}}}': 1,
        f"word_count_text_words_count{{{LABELS}}}": 4,
        f"word_count_text_words_sum{{{LABELS}}}": 254,
        f'word_count_text_words_bucket{{le="10",{LABELS}}}': 3,
        f'word_count_text_words_bucket{{le="+Inf",{LABELS}}}': 4,
    }
    for sample, growth in expected.items():
        print(f"{sample} grew by {after[sample] - before[sample]:.0f}")
        assert after[sample] - before[sample] == growth
    longest = [value for sample, value in after.items() if sample.startswith("word_count_longest_text_words")]
    print(f"the longest text of an instance had {max(longest):.0f} words")
    assert max(longest) == 250
    print("PASS: custom_metrics")


if __name__ == "__main__":
    main()
