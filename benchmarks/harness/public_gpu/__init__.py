"""Parts of `public_gpu.py`: what was published."""
