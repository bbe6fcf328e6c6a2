"""Compiled inner loops, whose machine code is kept by what it was made from.

kernel.py   `compiled` and `inner`, which make kernels of functions
code.py     what a kernel is made from: its code, what it calls, the constants it reads
store.py    the folder of machine code, and claims, so that no two processes compile the same
ahead.py    helper processes that compile what the usual path will need
"""

from rowtier.jit.kernel import compiled, inner

__all__ = ["compiled", "inner"]
