"""Growing tables in one process: what waits, what is refused, what is kept."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from naive_growth import NaiveGrowth
from safetensors.torch import load_file

from rowtier import (
    Band,
    Cluster,
    Device,
    Level,
    MismatchError,
    Plan,
    Table,
    Tables,
    Tier,
    UserError,
    make_profile,
)
from rowtier.runtime.checkpoint.export import export
from rowtier.runtime.checkpoint.exported import check_export
from rowtier.torch import SGD, Pipeline, ShardedEmbeddings, load_checkpoint, save_checkpoint


def plan_of(known: list[Any], rows: int = 6, **facts: Any) -> Plan:
    """Rows for four or five ids; the colder half lies on a disk."""
    facts = {"evict": "lru", "num_shared": 2, "optimizer": "sgd", **facts}
    table = Table(
        name="t", num_embeddings=rows, embedding_dim=2, features=("f",), ids="grow", **facts
    )
    tiers = tuple(
        Tier(name=n, capacity_bytes=2**40, bandwidth_bytes_per_s=1e9, granularity_bytes=g)
        for n, g in (("ram", 64), ("ssd", 4096))
    )
    level = Level(name="all", size=1, bandwidth_bytes_per_s=1e9)
    cluster = Cluster(name="one", levels=(level,), device=Device(tiers=tiers))
    profile = make_profile([{"f": known}], Tables(batch_size=4, tables=(table,)))
    bands = (
        Band(start=0, stop=3, scope="device", tier="ram"),
        Band(start=3, stop=rows, scope="device", tier="ssd"),
    )
    return Plan.build("by hand", profile, cluster, {"t": bands})


def module_of(plan: Plan, folder: Path) -> ShardedEmbeddings:
    return ShardedEmbeddings(plan, SGD(lr=0.5), tiers={"ssd": folder})


def ids_of(module: ShardedEmbeddings) -> list[Any]:
    ids = module.vocabulary("t").ids
    return list(ids.tolist() if isinstance(ids, np.ndarray) else ids.to_pylist())


def look_up(module: ShardedEmbeddings, *ids: Any) -> Any:
    return module({"f": list(ids)})["f"]


def test_rows_whose_gradients_wait_stay(tmp_path: Path) -> None:
    module = module_of(plan_of([1, 2, 3, 4]), tmp_path)
    first = look_up(module, 1, 2, 3)
    second = look_up(module, 7, 8, 9)  # one of them gets the row of 4; the others find none
    assert ids_of(module) == [1, 2, 3, 7]
    before = module.unsharded().state_dict()["embedding_bags.t.weight"].clone()
    (first.sum() + second.sum()).backward()
    module.optimizer.step()
    after = module.unsharded().state_dict()["embedding_bags.t.weight"]
    assert torch.equal(after[:4], before[:4] - 0.5)  # each was used once
    assert float((before[4:] - after[4:]).sum()) == pytest.approx(2 * 2 * 0.5)  # 8 and 9 share
    look_up(module, 8, 9)
    assert sorted(ids_of(module)) == [1, 7, 8, 9]  # of 1, 2 and 3 the higher rows go


def test_a_gradient_of_rows_that_went_is_refused(tmp_path: Path) -> None:
    module = module_of(plan_of([1, 2, 3, 4]), tmp_path)
    first, second = look_up(module, 1, 2), look_up(module, 3, 4)
    first.sum().backward()
    module.optimizer.step()
    look_up(module, 5, 6, 7)
    with pytest.raises(UserError, match=r"backward of a batch .* rows of growing tables went"):
        second.sum().backward()


def test_a_lookup_without_gradients_holds_no_rows(tmp_path: Path) -> None:
    module = module_of(plan_of([1, 2, 3, 4]), tmp_path)
    with torch.no_grad():
        for start in range(10, 40, 4):
            look_up(module, *range(start, start + 4))
            assert sorted(ids_of(module)) == list(range(start, start + 4))


def test_evaluation_gives_no_rows(tmp_path: Path) -> None:
    module = module_of(plan_of([1, 2]), tmp_path).eval()
    found = look_up(module, 1, 77)
    assert ids_of(module) == [1, 2]
    weights = module.unsharded().state_dict()["embedding_bags.t.weight"]
    assert torch.equal(found[0], weights[0])
    assert any(torch.equal(found[1], row) for row in weights[4:])


def test_ids_that_run_ahead_keep_their_rows(tmp_path: Path) -> None:
    plan = plan_of([1, 2, 3, 4], rows=7, evict="lru")
    module = module_of(plan, tmp_path)
    naive = NaiveGrowth(5, evict="lru", start=[1, 2, 3, 4], start_counts=[1] * 4)
    draw = np.random.default_rng(0)
    batches = [[[[int(key)]] for key in draw.integers(n, n + 6, 3)] for n in range(30)]
    for number, samples in enumerate(batches):
        naive.batch(samples, max(1, number))
    given = [{"f": [sample[0][0] for sample in samples]} for samples in batches]
    for _, outputs in Pipeline(module, given):
        outputs["f"].sum().backward()
        module.optimizer.step()
    assert ids_of(module) == sorted(naive.rows, key=lambda key: naive.rows[key])
    assert len(naive.evicted) > 10


def test_what_was_asked_ahead_and_overtaken_is_refused(tmp_path: Path) -> None:
    module = module_of(plan_of([1, 2, 3, 4]), tmp_path)
    asked = module.ask_ahead({"f": [1, 2]})
    look_up(module, 3, 4).sum().backward()
    module.optimizer.step()
    look_up(module, 5, 6, 7, 8).sum().backward()
    with pytest.raises(UserError, match=r"a lookup of a batch .* asked ahead in its order"):
        module(asked)


@pytest.mark.parametrize("strings", [False, True])
def test_exports_and_copies_name_ids(tmp_path: Path, strings: bool) -> None:
    known, new = (["b", "é"], ["", "long " * 9]) if strings else ([-5, 2**62], [7, 8])
    module = module_of(plan_of(known), tmp_path / "disk")
    look_up(module, *new).sum().backward()
    module.optimizer.step()
    wanted = [*sorted(known), *new] if not strings else [*known, *new]
    assert ids_of(module) == wanted
    assert ids_of(copy.deepcopy(module)) == wanted
    save_checkpoint(tmp_path / "save", model=module)
    export(tmp_path / "save", tmp_path / "t.safetensors")
    assert check_export(tmp_path / "t.safetensors")["tables"] == 1
    found = load_file(tmp_path / "t.safetensors")
    if strings:
        starts, text = found["embedding_bags.t.id_starts"], found["embedding_bags.t.id_text"]
        whole = bytes(text.tolist())
        pairs = zip(starts.tolist(), starts[1:].tolist(), strict=False)
        assert [whole[a:b].decode() for a, b in pairs] == wanted
    else:
        assert found["embedding_bags.t.ids"].tolist() == wanted
    assert found["embedding_bags.t.weight"].shape == (6, 2)


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    plan = plan_of([1, 2])
    with pytest.raises(UserError, match="'t' has `ids: grow`, and ids get their rows from all"):
        plan.remapper()({"f": [1]})
    with pytest.raises(UserError, match="rows=True, and table 't' has `ids: grow`"):
        plan.remapper(rows=True)
    module = module_of(plan, tmp_path)
    with pytest.raises(UserError, match="table 'x' has no `ids: grow`; growing are 't'"):
        module.vocabulary("x")
    with pytest.raises(UserError, match="holds strings, and the vocabulary of table 't' holds"):
        look_up(module, "a")


def test_long_texts_are_written_anew_when_most_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rowtier.profile.growing_texts._WORTH_BYTES", 100)
    module = module_of(plan_of(["a", "b"]), tmp_path)
    for number in range(20):
        look_up(module, f"{number:030}").sum().backward()
        module.optimizer.step()
    assert sorted(ids_of(module)) == [f"{number:030}" for number in range(16, 20)]
    assert module.engine.growing is not None
    assert module.engine.growing.texts["t"].size_bytes < 300


def test_a_checkpoint_of_other_rules_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "save", model=module_of(plan_of([1, 2]), tmp_path))
    for plan in (plan_of([1, 2], evict="never"), plan_of(["a"])):
        with pytest.raises(MismatchError, match=r"table 't' was saved with vocabulary grows .ids"):
            load_checkpoint(tmp_path / "save", model=module_of(plan, tmp_path))
