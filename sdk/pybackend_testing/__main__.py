"""``python -m pybackend_testing MODEL_DIR --input NAME=file.npy``: runs a model once, without a server."""

import sys

from pybackend_testing.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
