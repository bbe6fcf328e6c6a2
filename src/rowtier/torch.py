"""Train on a plan: what users of PyTorch import.

>>> from rowtier.torch import ParquetBatches, RowwiseAdagrad, ShardedEmbeddings
>>> embeddings = ShardedEmbeddings(plan, RowwiseAdagrad(lr=0.01))
>>> pooled = embeddings({"item": (ids, lengths)})
>>> for batch in ParquetBatches("clicks/", plan): pooled = embeddings(batch.features)
"""

from __future__ import annotations

from rowtier.plan.bags import Bags
from rowtier.plan.remap import Addressed, Remapper
from rowtier.runtime.autopilot import Autopilot, PilotDecision
from rowtier.runtime.batches.file_batches import FileBatch, ParquetBatches
from rowtier.runtime.checkpoint.export import export
from rowtier.runtime.checkpoint.pending import PendingSave
from rowtier.runtime.checkpoint.save_load import load_checkpoint, save_checkpoint
from rowtier.runtime.dense_time import DenseTime
from rowtier.runtime.exchange.counters import Counters, Totals
from rowtier.runtime.exchange.troubles import LostRankError
from rowtier.runtime.migrate import Migration
from rowtier.runtime.module import ShardedEmbeddings
from rowtier.runtime.optim import (
    SGD,
    Adagrad,
    MomentumSGD,
    RowwiseAdagrad,
    SparseAdam,
    SparseAdamW,
)
from rowtier.runtime.pipeline import Pipeline
from rowtier.runtime.row_optimizer import EmbeddingOptimizer
from rowtier.runtime.store.memory import Disk
from rowtier.runtime.together import Together
from rowtier.runtime.unsharded import JaggedRows, UnshardedEmbeddings

__all__ = [
    "SGD",
    "Adagrad",
    "Addressed",
    "Autopilot",
    "Bags",
    "Counters",
    "DenseTime",
    "Disk",
    "EmbeddingOptimizer",
    "FileBatch",
    "JaggedRows",
    "LostRankError",
    "Migration",
    "MomentumSGD",
    "ParquetBatches",
    "PendingSave",
    "PilotDecision",
    "Pipeline",
    "Remapper",
    "RowwiseAdagrad",
    "ShardedEmbeddings",
    "SparseAdam",
    "SparseAdamW",
    "Together",
    "Totals",
    "UnshardedEmbeddings",
    "export",
    "load_checkpoint",
    "save_checkpoint",
]
