"""`rowtier export`: tables of a checkpoint as plain tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

from cli.run import run  # noqa: E402
from runtime.plans import plan_for  # noqa: E402

from rowtier import Table  # noqa: E402
from rowtier.torch import ShardedEmbeddings, save_checkpoint  # noqa: E402

TABLES = (
    Table(name="half", num_embeddings=5, embedding_dim=3, dtype="fp16", features=("h",)),
    Table(name="item.id", num_embeddings=7, embedding_dim=3, pooling="mean", features=("i",)),
    Table(name="brain", num_embeddings=9, embedding_dim=5, dtype="bf16", features=("b",)),
    Table(name="list", num_embeddings=8, embedding_dim=2, pooling="none", features=("l",)),
)


class Model(torch.nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.embeddings = ShardedEmbeddings(plan_for(*TABLES), seed=seed)
        self.dense = torch.nn.Linear(2, 1)


def test_a_checkpoint_comes_out_as_plain_tensors(tmp_path: Path) -> None:
    model = Model()
    save_checkpoint(tmp_path / "run", model=model, rows=model.embeddings.optimizer, step=1)
    file = tmp_path / "out" / "tables.safetensors"
    code, out, errors = run("export", str(tmp_path / "run"), "-o", str(file))
    assert (code, errors) == (0, "")
    assert out.startswith("4 tables, ")
    found, expected = safetensors.load_file(file), model.embeddings.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    bag = torch.nn.EmbeddingBag.from_pretrained(found["embedding_bags.item.id.weight"])
    assert bag(torch.tensor([[1, 2]])).shape == (1, 3)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_machines_get_the_facts(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "run", model=Model().embeddings)
    file = tmp_path / "tables.safetensors"
    code, out, _ = run("export", str(tmp_path / "run"), "-o", str(file), "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["bytes"] == 2 * 15 + 4 * 21 + 2 * 45 + 4 * 16
    assert facts["tables"][0] == {
        "table": "item.id", "name": "embedding_bags.item.id.weight", "pooling": "mean",
        "shape": [7, 3], "dtype": "F32", "bytes": 84,
    }  # fmt: skip


def test_tables_of_the_same_name_keep_their_module_apart(tmp_path: Path) -> None:
    two = torch.nn.ModuleDict({"a": Model(1).embeddings, "b": Model(2).embeddings})
    save_checkpoint(tmp_path / "run", model=two)
    file = tmp_path / "tables.safetensors"
    assert run("export", str(tmp_path / "run"), "-o", str(file))[0] == 0
    found = safetensors.load_file(file)
    for key, value in two.state_dict().items():
        assert torch.equal(found[f"model.{key}"], value)


def test_mistakes_end_with_code_2_and_leave_no_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "run", step=1)
    file = tmp_path / "tables.safetensors"
    for checkpoint, output, message in (
        ("run", file, "no part of the checkpoint has embedding tables"),
        ("nowhere", file, "there is no such folder"),
        ("run", tmp_path, "is a folder; give a file"),
    ):
        code, _, errors = run("export", str(tmp_path / checkpoint), "-o", str(output))
        assert code == 2
        assert message in " ".join(errors.split())
    assert not file.exists()
