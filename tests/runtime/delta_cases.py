from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.run import run as run_cli

torch = pytest.importorskip("torch", reason="torch is not installed")

from plans import plan_for  # noqa: E402

from rowtier import Table  # noqa: E402
from rowtier.torch import (  # noqa: E402
    RowwiseAdagrad,
    ShardedEmbeddings,
    SparseAdam,
    load_checkpoint,
    save_checkpoint,
)

TABLES = [
    Table(name="a", num_embeddings=200, embedding_dim=4, features=("a",), optimizer="adam"),
    Table(
        name="b", num_embeddings=300, embedding_dim=4, features=("b",), dtype="bf16",
        optimizer="rowwise_adagrad",
    ),
]  # fmt: skip


def run(*arguments: Any) -> tuple[int, str, str]:
    """A command of rowtier."""
    return run_cli(*map(str, arguments))


class Trained:
    """Two small tables that are trained."""

    def __init__(self, *tables: Table, **options: Any):
        plan = plan_for(*(tables or TABLES))
        kinds = [SparseAdam(lr=0.1), RowwiseAdagrad(lr=0.1)]
        here = {entry.optimizer for entry, _ in plan}
        optimizers = [kind for kind in kinds if kind.kind in here]
        self.rows = ShardedEmbeddings(plan, optimizers, deltas=True, **options)
        self.steps = 0

    def step(self, count: int = 1) -> None:
        """Train a few rows."""
        for _ in range(count):
            random = np.random.default_rng(self.steps)
            batch = {
                feature: torch.from_numpy(random.integers(0, table.num_embeddings, (3, 2)))
                for table in self.rows.engine.tables
                for feature in table.features
            }
            sum(output.square().sum() for output in self.rows(batch).values()).backward()
            self.rows.optimizer.step()
            self.steps += 1

    @property
    def parts(self) -> dict[str, Any]:
        """What is saved."""
        return {"model": self.rows, "rows": self.rows.optimizer, "steps": self.steps}

    def save(self, folder: Path, **options: Any) -> Any:
        """Save everything."""
        return save_checkpoint(folder, **options, **self.parts)

    def export(self, folder: Path) -> Path:
        """An export of the weights as they are now."""
        self.save(folder, keep=9)
        target = folder.parent / f"{folder.name}-{self.steps}.safetensors"
        assert run("export", folder, "-o", target)[0] == 0
        return target

    def values(self) -> dict[str, Any]:
        """Weights and state as they are now."""
        state = self.rows.optimizer.state_dict()["state"]
        found = dict(self.rows.state_dict())
        found |= {f"{k}.{f}": v for k, fields in state.items() for f, v in fields.items()}
        return {name: value.clone() for name, value in found.items()}


def equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same names, and the same bits."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def loaded(folder: Path) -> dict[str, Any]:
    """What another process would have."""
    other = Trained(seed=9)
    load_checkpoint(folder, **other.parts)
    return other.values()
