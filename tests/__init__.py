"""Tests, and the benchmark: a package so that they can import each other's parts by full name."""
