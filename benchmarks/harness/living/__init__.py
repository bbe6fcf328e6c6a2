"""What benchmarks/living.py measures, one module a part."""
