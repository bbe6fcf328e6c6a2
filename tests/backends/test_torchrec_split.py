"""Hot rows copied, cold rows kept once: the same outputs, and TorchRec trains it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchrec
from backends.torchrec_cases import machine, tables
from strategies import counted

import rowtier.torchrec as rt
from rowtier import Band, Plan, Profile, Tables, UserError, make_plan
from rowtier.backends.modules import model_of

WANTED = tables((203, 16, "sum"), (150, 8, "mean"), (31, 8, "sum"))


def profile_of(wanted: Tables) -> Profile:
    random = np.random.default_rng(3)
    stats = []
    for table in wanted:
        heat = random.zipf(1.5, table.num_embeddings) % 50
        stats.append(counted(table, heat, samples=int(heat.sum()) + 1))
    return Profile(wanted.batch_size, tuple(stats))


def hot_and_cold(cold: dict[str, object], wanted: Tables = WANTED) -> Plan:
    """The first table in halves, the second cold alone, the third copied."""
    bands = {}
    for table, hot in zip(wanted, (20, 0, wanted.tables[-1].num_embeddings), strict=True):
        rows = table.num_embeddings
        parts = [(0, hot, {"scope": "device"}), (hot, rows, {"scope": "cluster", **cold})]
        bands[table.name] = tuple(
            Band(start=first, stop=last, tier="hbm", **facts)
            for first, last, facts in parts
            if last > first
        )
    return Plan.build("hand", profile_of(wanted), machine(1, 2), bands)


def batch(weighted: bool = False) -> torchrec.KeyedJaggedTensor:
    random = torch.Generator().manual_seed(5)
    lengths = torch.randint(0, 6, (3 * 9,), generator=random)
    counts = lengths.view(3, 9).sum(dim=1).tolist()
    ids = [
        torch.randint(0, table.num_embeddings, (count,), generator=random)
        for table, count in zip(WANTED, counts, strict=True)
    ]
    weights = torch.rand(sum(counts), generator=random) if weighted else None
    return torchrec.KeyedJaggedTensor.from_lengths_sync(
        ["f0", "f1", "f2"], torch.cat(ids), lengths, weights
    )


def bags(weighted: bool = False) -> torchrec.EmbeddingBagCollection:
    torch.manual_seed(0)
    shown = [] if not weighted else [torchrec.PoolingType.SUM] * 3
    kinds = shown or [torchrec.PoolingType.SUM, torchrec.PoolingType.MEAN, torchrec.PoolingType.SUM]
    configs = [
        torchrec.EmbeddingBagConfig(
            name=t.name,
            num_embeddings=t.num_embeddings,
            embedding_dim=t.embedding_dim,
            feature_names=list(t.features),
            pooling=kind,
        )
        for t, kind in zip(WANTED, kinds, strict=True)
    ]
    return torchrec.EmbeddingBagCollection(tables=configs, is_weighted=weighted)


@pytest.mark.parametrize(
    "cold", [{"offset": 1}, {"order": "blocks"}, {"members": (1,)}, {"members": (0, 1)}]
)
def test_outputs_are_those_of_the_whole_tables(cold: dict[str, object]) -> None:
    whole = bags()
    halves = rt.split(whole, hot_and_cold(cold))
    expected, found = whole(batch()), halves(batch())
    assert found.keys() == expected.keys()
    assert found.length_per_key() == expected.length_per_key()
    torch.testing.assert_close(found.values(), expected.values())


def test_weights_of_lookups_are_kept() -> None:
    wanted = WANTED.model_copy(
        update={"tables": tuple(t.model_copy(update={"pooling": "sum"}) for t in WANTED)}
    )
    whole = bags(weighted=True)
    halves = rt.split(whole, hot_and_cold({"order": "blocks"}, wanted))
    torch.testing.assert_close(halves(batch(True)).values(), whole(batch(True)).values())


def test_gradients_reach_each_row_once() -> None:
    whole = bags()
    halves = rt.split(whole, hot_and_cold({"offset": 1}))
    for module in (whole, halves):
        (module(batch()).values() ** 2).sum().backward()
    part = halves.parts[0]
    grad = whole.embedding_bags["t0"].weight.grad
    hot = halves.hot.embedding_bags["t0_hot"].weight.grad
    cold = halves.cold.embedding_bags["t0_cold"].weight.grad
    together = torch.cat([hot, cold])[torch.from_numpy(part.places)]
    torch.testing.assert_close(together, grad)


def test_halves_are_copied_and_cut_evenly() -> None:
    halves = rt.split(bags(), hot_and_cold({"offset": 1}))
    plan = halves.sharding_plan("sparse.bags", device="cpu")
    assert set(plan.plan) == {"sparse.bags.hot", "sparse.bags.cold"}
    assert {s.sharding_type for s in plan.plan["sparse.bags.hot"].values()} == {"data_parallel"}
    sizes = [s.shard_sizes for s in plan.plan["sparse.bags.cold"]["t0_cold"].sharding_spec.shards]
    assert sizes == [[92, 16], [92, 16]]  # 183 rows and one that fills the last block
    assert "1 of 3 tables" in halves.costs(batch_size=64)


def test_plans_of_sca_can_be_split() -> None:
    plan = make_plan(profile_of(WANTED), machine(1, 2), "sca")
    whole = bags()
    halves = rt.split(whole, plan)
    torch.testing.assert_close(halves(batch()).values(), whole(batch()).values())


@pytest.mark.parametrize(
    ("bands", "why"),
    [
        ([Band(start=0, stop=203, scope="node", tier="hbm", members=(0,))], "copy per node"),
        (
            [
                Band(start=0, stop=203, scope="cluster", tier="hbm", columns=(0, 8)),
                Band(start=0, stop=203, scope="cluster", tier="hbm", columns=(8, 16)),
            ],
            "columns",
        ),
        (
            [
                Band(start=0, stop=9, scope="cluster", tier="hbm"),
                Band(start=9, stop=203, scope="device", tier="hbm"),
            ],
            "not the hottest",
        ),
        (
            [
                Band(start=0, stop=9, scope="cluster", tier="hbm"),
                Band(start=9, stop=203, scope="cluster", tier="dram"),
            ],
            "several homes",
        ),
    ],
)
def test_what_torchrec_cannot_keep_is_refused(bands: list[Band], why: str) -> None:
    wanted = Tables(batch_size=64, tables=WANTED.tables[:1])
    plan = Plan.build("hand", profile_of(wanted), machine(2, 2), {"t0": tuple(bands)})
    with pytest.raises(UserError, match=f"{why}.*ShardedEmbeddings"):
        rt.split(model_of(wanted).pooled, plan)


def test_cold_rows_of_learned_weights_are_refused() -> None:
    table = WANTED.tables[0].model_copy(update={"weights": "learned"})
    wanted = Tables(batch_size=64, tables=(table,))
    bands = (
        Band(start=0, stop=9, scope="device", tier="hbm"),
        Band(start=9, stop=203, scope="cluster", tier="hbm"),
    )
    plan = Plan.build("hand", profile_of(wanted), machine(2, 2), {"t0": bands})
    with pytest.raises(UserError, match=r"must see the rows.*ShardedEmbeddings"):
        rt.split(model_of(wanted).pooled, plan)


def test_sequences_and_whole_models_are_refused() -> None:
    wanted = tables((50, 8, "none"))
    plan = make_plan(profile_of(wanted), machine(1, 2), "row-wise")
    with pytest.raises(UserError, match="ShardedEmbeddings"):
        rt.split(model_of(wanted).sequence_8, plan)
    with pytest.raises(UserError, match="collection itself"):
        rt.split(torch.nn.Linear(2, 2), plan)


def test_halves_are_trained_on_two_processes(tmp_path: Path) -> None:
    command = [
        sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", "2", str(Path(__file__).parent / "train_split.py"), str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        loss = torch.load(tmp_path / f"{rank}.pt")
        assert loss["sharded"][0] == pytest.approx(loss["alone"], rel=1e-5)
        assert loss["sharded"][1] < loss["sharded"][0]
