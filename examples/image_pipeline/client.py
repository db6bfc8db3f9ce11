"""Draws pictures with a spot somewhere, sends them to the pipeline, and checks where it finds the spot."""

import argparse
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.http as httpclient

PLACES = ["top left", "top", "top right", "left", "middle", "right", "bottom left", "bottom", "bottom right"]


def draw(place, rows, columns):
    """A dark picture with a bright disc in one of nine places; no disc for None."""
    picture = np.full((rows, columns, 3), (20, 30, 60), dtype=np.uint8)
    if place is not None:
        row, column = np.mgrid[:rows, :columns]
        down, across = (place // 3 + 0.5) * rows / 3, (place % 3 + 0.5) * columns / 3
        inside = ((row - down) / rows) ** 2 + ((column - across) / columns) ** 2 < 0.15**2
        picture[inside] = (250, 220, 120)
    return picture


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="host:port of the server (default: %(default)s)")
    options = parser.parse_args()

    def ask(picture, output):
        with httpclient.InferenceServerClient(options.url) as client:
            sent = httpclient.InferInput("PICTURE", picture.shape, "UINT8").set_data_from_numpy(picture)
            return client.infer("find_spot", [sent], outputs=[output]).as_numpy(output.name())

    def words(place):
        picture = draw(place, rows=200 + 10 * (place or 0), columns=320)
        return ask(picture, httpclient.InferRequestedOutput("ANSWER"))[0].decode()

    with ThreadPoolExecutor(9) as threads:
        answers = list(threads.map(words, range(9)))
    for place, answer in zip(PLACES, answers, strict=True):
        print(f"{place}? {answer}")
        assert answer.startswith(f"{place}: ")
    print(f"nowhere? {words(None)}")
    assert words(None) == "there is no spot"

    # The labels are those of the network, which is the step that makes the scores.
    classes = ask(draw(4, 600, 800), httpclient.InferRequestedOutput("SCORES", class_count=2))
    print(f"the best two: {[each.decode() for each in classes]}")
    assert classes[0].decode().endswith(":4:middle")
    print("PASS: image_pipeline")


if __name__ == "__main__":
    main()
