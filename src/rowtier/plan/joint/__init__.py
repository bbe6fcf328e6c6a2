"""`joint`: exchange, scope, members, columns and tier together, for the least step time.

`homes.py` lists every way that a band can say, priced row by row; `dual.py` finds the prices of
memory at which they prove the best bound; `make.py` turns them into plans and compares.
"""

from rowtier.plan.joint.make import plan

__all__ = ["plan"]
