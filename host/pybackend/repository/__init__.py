"""Models on disk, and which of them are loaded."""
