"""Batches that every way trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

NUM_DENSE = 13
ROWS = (50_000, 20_000, 8_000, 3_000, 1_000, 400, 100, 30)
POOLING = (10, 5, 2, 1, 4, 1, 2, 1)  # ids a sample, on average


@dataclass(frozen=True, eq=False)
class Batch:
    """What some processes read in a step."""

    dense: torch.Tensor
    labels: torch.Tensor
    features: dict[str, tuple[Any, Any]]  # ids, ids per sample

    @property
    def keyed(self) -> Any:
        """The features as TorchRec's models take them."""
        from torchrec import KeyedJaggedTensor

        ids, lengths = zip(*self.features.values(), strict=True)
        return KeyedJaggedTensor.from_lengths_sync(
            list(self.features),
            torch.from_numpy(np.concatenate(ids)),
            torch.from_numpy(np.concatenate(lengths)),
        )


def batch_of(step: int, rank: int, samples: int) -> Batch:
    """Zipf-distributed ids, whose hot rows lie anywhere in a table, and clicks that follow them."""
    random = np.random.default_rng([step, rank])
    dense = random.standard_normal((samples, NUM_DENSE), dtype=np.float32)
    odds, features = dense[:, 0].copy(), {}
    for index, (rows, pooling) in enumerate(zip(ROWS, POOLING, strict=True)):
        lengths = random.integers(0, 2 * pooling + 1, samples)
        ranks = (random.zipf(1.2, lengths.sum()) - 1) % rows
        ids = np.random.default_rng(index).permutation(rows)[ranks]
        at = np.repeat(np.arange(samples), lengths)
        odds += np.bincount(at, np.sin(ids) / pooling, samples).astype(np.float32)
        features[f"f{index}"] = (ids, lengths)
    clicks = random.random(samples) < 1 / (1 + np.exp(-odds))
    return Batch(torch.from_numpy(dense), torch.from_numpy(clicks.astype(np.float32)), features)


def joined(batches: list[Batch]) -> Batch:
    """The batches of all processes as one."""
    features: dict[str, tuple[Any, Any]] = {}
    for name in batches[0].features:
        ids, lengths = zip(*(batch.features[name] for batch in batches), strict=True)
        features[name] = (np.concatenate(ids), np.concatenate(lengths))
    return Batch(
        torch.cat([batch.dense for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
        features,
    )
