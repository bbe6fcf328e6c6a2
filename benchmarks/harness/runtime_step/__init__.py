"""Parts of `runtime_step.py`."""
