"""Faults that benchmarks/faults.py tries against rowtier, one module a kind."""
