"""Benchmarks of `edl bench`."""
