"""Property tests draw the same examples everywhere, so that a failure can be seen again.

ROWTIER_RANDOM_TESTS=1 draws new ones each time.
"""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random")
settings.load_profile("random" if os.environ.get("ROWTIER_RANDOM_TESTS") else "repeatable")
