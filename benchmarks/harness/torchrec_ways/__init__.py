"""Parts of `torchrec_ways.py`."""
