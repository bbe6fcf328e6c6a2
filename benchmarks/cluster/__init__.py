"""Several nodes on one machine: real processes in network namespaces, joined by shaped links.

    with Shaped(nodes=2, ranks_per_node=2, rate_bits_per_s=1e9) as cluster:
        results = cluster.call(function, *args)  # function(rank, world, *args) on every rank
        sent = cluster.sent_bytes()  # per node, read outside the ranks
        done = cluster.launch([sys.executable, "script.py"])  # one process per rank, as torchrun

`why_not()` says why this machine cannot do that, or None.
"""

from .launch import Launched
from .ranks import RankError
from .shaped import Shaped, why_not

__all__ = ["Launched", "RankError", "Shaped", "why_not"]
