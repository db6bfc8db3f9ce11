"""The project's benchmark: ``python -m tests.bench`` measures pybackend against yardsticks in the same run."""
