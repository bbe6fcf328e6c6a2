"""Other systems' placements, in and out; `rowtier.torchrec` is what users import.

Importing any part looks first whether TorchRec is there and fits: `versions.py`.
"""

from rowtier.backends.versions import require

require()
