"""What this machine has, for tests whose expectations depend on it."""

from pathlib import Path

import pytest

without_gpu = pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")
"""For what holds only where KIND_AUTO means the CPU."""
