"""Parts of `real_data.py`."""
