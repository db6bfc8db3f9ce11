"""pybackend: serves models written for Triton's Python backend."""

__version__ = "0.1.0.dev0"
