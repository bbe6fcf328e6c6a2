"""Batches of strings and of ids without a row, through remapper and module."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier import (
    Cluster,
    Device,
    MismatchError,
    Plan,
    Table,
    Tables,
    Tier,
    UserError,
    diff,
    make_plan,
    make_profile,
    rows_of,
)
from rowtier.plan.bags import Bags
from rowtier.torch import (
    RowwiseAdagrad,
    ShardedEmbeddings,
    load_checkpoint,
    save_checkpoint,
)

ROWS, DIM = 12, 3


def table_of(**changes: Any) -> Table:
    base = {"name": "t", "num_embeddings": ROWS, "embedding_dim": DIM, "features": ("f",)}
    return Table.model_validate({**base, **changes})


def plan_of(table: Table, ids: Any) -> Plan:
    profile = make_profile([{"f": ids}], Tables(batch_size=4, tables=(table,)))
    tier = Tier(name="ram", capacity_bytes=2**30, bandwidth_bytes_per_s=1e9)
    return make_plan(profile, Cluster(name="one", device=Device(tiers=(tier,))), "row-wise")


def rows_at(plan: Plan, batch: Mapping[str, Any], **options: Any) -> tuple[list[int], list[int]]:
    """The rows that a batch looks up, and how many each sample has."""
    remapper = pickle.loads(pickle.dumps(made := plan.remapper(**options)))
    found = remapper(batch)["f"]
    rows = remapper.tables["t"].rows()[found.values].tolist()
    made.forget()
    return rows, found.lengths.tolist()


MAPPINGS = st.sampled_from(["as_is", "modulo", "hash", "hashed", "vocabulary"])
INTS = st.integers(-5, 20) | st.integers(-(2**63), 2**63 - 1)
WORDS = st.text("abé", max_size=2)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Table, list[Any], list[list[Any]]]:
    """A table, ids to profile, and lists of ids to look up, some of them null."""
    strings = draw(st.booleans())
    ids = draw(st.sampled_from(["hash", "vocabulary"]) if strings else MAPPINGS)
    kind: st.SearchStrategy[Any] = WORDS if strings else INTS
    policies = ["drop", "hash"] + ([] if ids == "vocabulary" else ["clip"])
    changes: dict[str, Any] = {"ids": ids, "on_out_of_range": draw(st.sampled_from(policies))}
    if ids == "vocabulary":
        changes["num_shared"] = draw(st.integers(0, 2))
    changes["pooling"] = draw(st.sampled_from(["sum", "mean", "none"]))
    seen = [draw(kind), *draw(st.lists(kind, min_size=5, max_size=20))]
    asked = draw(
        st.lists(st.lists(st.none() | kind | st.sampled_from(seen)), min_size=1, max_size=5)
    )
    return table_of(**changes), seen, asked


@settings(deadline=None, max_examples=60)
@given(cases())
def test_remapper_and_module_take_the_rows_that_the_table_says(
    case: tuple[Table, list[Any], list[list[Any]]],
) -> None:
    table, seen, asked = case
    plan = plan_of(table, seen)
    per_sample = [plan.rows_of("t", ids) for ids in asked]
    kept = [rows[rows >= 0].tolist() for rows in per_sample]
    expected = [row for rows in kept for row in rows], [len(rows) for rows in kept]
    flat = [value for ids in asked for value in ids]
    lengths = [len(ids) for ids in asked]
    assert rows_at(plan, {"f": (flat, lengths)}) == expected
    assert rows_at(plan, {"f": asked}) == expected
    rows = plan.rows_of("t", flat)
    assert rows_at(plan, {"f": (rows, lengths)}, rows=True) == expected
    module = ShardedEmbeddings(plan)
    weights = module.state_dict()
    weight = next(iter(weights.values())).to(torch.float32)
    found = module({"f": asked})["f"]
    if table.pooling == "none":
        assert found.lengths.tolist() == expected[1]
        assert torch.equal(found.values, weight[torch.tensor(expected[0], dtype=torch.long)])
        return
    for output, sample in zip(found, kept, strict=True):
        total = weight[torch.tensor(sample, dtype=torch.long)].sum(0)
        whole = total / max(1, len(sample)) if table.pooling == "mean" else total
        assert torch.allclose(output, whole, atol=1e-6)


WORD_FORMS: list[Any] = [
    ["a", None, "b", "q"],
    np.array(["a", None, "b", "q"], dtype=object),
    pa.array(["a", None, "b", "q"]),
    pa.array(["a", None, "b", "q"]).dictionary_encode(),
    pa.chunked_array([["a", None], ["b", "q"]]),
    [["a"], [], ["b"], ["q"]],
    [["a"], None, ["b"], ["q", None]],
    pa.array([["a"], None, ["b"], ["q"]], pa.large_list(pa.large_string())),
    pa.array([["a"], None, ["b"], ["q"]], pa.list_(pa.string(), 1)),
    np.array([["a"], [None], ["b"], ["q"]], dtype=object),
    (["a", "b", "q"], [1, 0, 1, 1]),
    [pa.array(["a", "b", "q"]), np.array([1, 0, 1, 1])],
    (np.array(["a", "b", "q"]), torch.tensor([1, 0, 1, 1])),
    Bags(pa.array(["a", "b", "q"]), offsets=[0, 1, 1, 2, 3]),
    Bags(["a", None, "b", "q"], lengths=[1, 1, 1, 1]),
]


@pytest.mark.parametrize("form", WORD_FORMS, ids=lambda form: type(form).__name__)
@pytest.mark.parametrize("mapping", ["hash", "vocabulary"])
def test_strings_come_in_many_forms(form: Any, mapping: Any) -> None:
    table = table_of(ids=mapping)
    plan = plan_of(table, ["a", "a", "b"])
    rows = plan.rows_of("t", ["a", "b", "q"]).tolist()
    assert rows_at(plan, {"f": form}) == (rows, [1, 0, 1, 1])


def test_two_lists_of_strings_are_two_samples_and_not_values_and_lengths() -> None:
    plan = plan_of(table_of(ids="vocabulary"), ["a", "a", "b"])
    assert rows_at(plan, {"f": [["a", "b"], ["a"]]}) == ([0, 1, 0], [2, 1])
    assert rows_at(plan, {"f": ["a", "b"]}) == ([0, 1], [1, 1])
    assert rows_at(plan, {"f": []}) == ([], [])


def test_training_on_strings_moves_the_rows_they_stand_for() -> None:
    plan = plan_of(table_of(ids="vocabulary"), ["a", "a", "b"])
    module = ShardedEmbeddings(plan, RowwiseAdagrad(lr=0.5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module({"f": ["b", None, "b"]})["f"].square().sum().backward()
    module.optimizer.step()
    ((_, old),) = before.items()
    ((_, new),) = module.state_dict().items()
    changed = (old != new).any(dim=1).nonzero().reshape(-1).tolist()
    assert changed == [1]


def test_weights_of_dropped_lookups_go_with_them_and_get_no_gradient() -> None:
    plan = plan_of(table_of(on_out_of_range="drop"), [1, 2, 3])
    module = ShardedEmbeddings(plan)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    found = module({"f": ([1, 99, 2, 1], [2, 2], weights)})["f"]
    rows = next(iter(module.state_dict().values()))
    assert torch.allclose(found[0], rows[1])
    assert torch.allclose(found[1], 3 * rows[2] + 4 * rows[1])
    found.sum().backward()
    assert weights.grad is not None
    expected = torch.stack([rows[1].sum(), torch.tensor(0.0), rows[2].sum(), rows[1].sum()])
    assert torch.allclose(weights.grad, expected)


@pytest.mark.parametrize("form", [[1, 99], np.array([[1, 2], [3, 99]]), pa.array([1, None])])
def test_a_rectangle_of_a_sequence_table_must_keep_its_lookups(form: Any) -> None:
    plan = plan_of(table_of(on_out_of_range="drop", pooling="none"), [1, 2, 3])
    with pytest.raises(UserError, match=r"'f': sample 1 of the batch.*lists, or \(ids, lengths\)"):
        rows_at(plan, {"f": form})
    pooled = plan_of(table_of(on_out_of_range="drop"), [1, 2, 3])
    assert sum(rows_at(pooled, {"f": form})[1]) in (1, 3)


def test_batches_of_rows_are_not_hashed_again() -> None:
    plan = plan_of(table_of(ids="hash"), ["a", "b"])
    rows = plan.rows_of("t", ["a", None, "b"])
    by_rows = ShardedEmbeddings(plan, rows=True, seed=3)({"f": rows})["f"]
    assert torch.equal(by_rows, ShardedEmbeddings(plan, seed=3)({"f": ["a", None, "b"]})["f"])
    with pytest.raises(UserError, match=r"has row 12 in sample 1 .*rows 0 to 11.*rows_of"):
        rows_at(plan, {"f": [1, 12]}, rows=True)
    with pytest.raises(UserError, match=r"'f' holds strings, and rows .* were expected"):
        rows_at(plan, {"f": ["a"]}, rows=True)


@pytest.mark.parametrize(
    ("mapping", "batch", "words"),
    [
        ("as_is", [0, 99], "feature 'f' has id 99 in sample 1 of the batch.*on_out_of_range"),
        ("as_is", ["a"], "'f' holds strings such as 'a'.*`ids: hash`"),
        ("as_is", [0.5], "'f' holds double; ids are whole numbers"),
        ("vocabulary", ["zz"], "'f' has id 'zz' in sample 0 .*vocabulary of table 't' does not"),
    ],
)
def test_ids_without_a_row_are_named(mapping: Any, batch: Any, words: str) -> None:
    shared = {"num_shared": 0} if mapping == "vocabulary" else {}
    plan = plan_of(table_of(ids=mapping, **shared), ["a"] if shared else [1])
    with pytest.raises(UserError, match=words):
        rows_at(plan, {"f": batch})


def test_a_plan_without_its_vocabulary_is_refused() -> None:
    table = table_of(ids="vocabulary")
    plan = plan_of(table, ["a", "b"])
    bare = Plan(
        plan.method, plan.bands, plan.cluster, plan.profile, plan.made_for, plan.order
    )  # fmt: skip
    with pytest.raises(UserError, match=r"takes ids by a vocabulary, and the plan has none"):
        bare.remapper()
    rows = rows_of(table, ["b"], plan.vocabularies["t"])
    assert rows_at(bare, {"f": rows}, rows=True) == ([1], [1])


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    table = table_of(ids="vocabulary")
    old, new = plan_of(table, ["a", "a", "b"]), plan_of(table, ["b", "b", "a"])
    save_checkpoint(tmp_path / "run", rows=ShardedEmbeddings(old))
    load_checkpoint(tmp_path / "run", rows=ShardedEmbeddings(old))
    with pytest.raises(MismatchError, match=r"table 't' was trained with vocabulary.*--vocabulary"):
        load_checkpoint(tmp_path / "run", rows=ShardedEmbeddings(new))
    with pytest.raises(MismatchError, match="'t' has another vocabulary"):
        diff(old, new)
