"""``python -m pybackend``."""

import sys

from pybackend.cli import main

sys.exit(main())
