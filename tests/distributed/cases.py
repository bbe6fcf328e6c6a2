"""Drawn plans with batches for every rank, what torch alone makes of them, and the comparison."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import numpy as np
import torch
from hypothesis import strategies as st
from jobs import train
from reference import Changes, Reference, default_numbers
from strategies import bands, counted

from rowtier import Band, Cluster, Device, Level, Plan, Profile, Table, Tier
from rowtier.cost.options import CostOptions
from rowtier.evaluate.batches import Wanted, windows
from rowtier.evaluate.counting import Counter
from rowtier.profile.readers import open_source
from rowtier.tables import Optimizer

WEIGHTS, OUTPUTS = 1e-5, 1e-6  # how far ordinary numbers of about 0.1 may be off
SHAPES = [(1,), (2,), (3,), (4,), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (1, 2, 2), (2, 2, 1)]
STEPS = 20
KINDS = get_args(Optimizer)
HOST_TIERS = ("ram", "ssd")
FLOWS = ("ids", "forward", "backward", "sync", "sync_ids")


def cluster_of(shape: tuple[int, ...], names: tuple[str, str] = HOST_TIERS) -> Cluster:
    """Levels of the given sizes, two tiers."""
    tiers = [
        Tier(name=n, capacity_bytes=2**40, bandwidth_bytes_per_s=1e9, granularity_bytes=g)
        for n, g in zip(names, (64, 4096), strict=True)
    ]
    levels = [
        Level(name=f"level{i}", size=size, bandwidth_bytes_per_s=1e9)
        for i, size in enumerate(shape)
    ]
    return Cluster(name="drawn", levels=tuple(levels), device=Device(tiers=tuple(tiers)))


@st.composite
def drawn_plans(
    draw: st.DrawFn,
    dtypes: tuple[str, ...] = ("fp32",),
    learned: bool = False,
    tiers: tuple[str, str] = HOST_TIERS,
    **fixed: Any,
) -> Plan:
    """One to three small tables on one to four devices; often such that are run as one.

    `learned`: lookups of every other one that is pooled have learned weights.
    """
    cluster, stats = cluster_of(draw(st.sampled_from(SHAPES)), tiers), []
    together = draw(st.booleans())
    for index in range(draw(st.sampled_from([2, 3] if together else [1, 1, 2]))):
        features = tuple(f"t{index}_f{i}" for i in range(draw(st.sampled_from([1, 1, 2]))))
        if index == 0 or not together:
            facts = {
                "pooling": draw(st.sampled_from(["sum", "mean", "none"])),
                "optimizer": draw(st.sampled_from(KINDS)),
                "dtype": draw(st.sampled_from(dtypes)),
                "embedding_dim": draw(st.integers(1, 6)),
            } | fixed
        if learned and facts["pooling"] != "none":
            facts["weights"] = "given" if index % 2 else "learned"
        table = Table(
            name=f"t{index}", num_embeddings=draw(st.integers(1, 40)), features=features, **facts
        )
        heat = draw(
            st.lists(
                st.integers(0, 4), min_size=table.num_embeddings, max_size=table.num_embeddings
            )
        )
        stats.append(counted(table, np.array(heat, dtype=np.int64)))
    profile = Profile(4, tuple(stats))
    kinds = draw(placements(cluster)) if together else []
    placed = {entry.table.name: draw(placed_bands(entry.table, cluster, kinds)) for entry in stats}
    return Plan.build("drawn", profile, cluster, placed)


@st.composite
def placements(draw: st.DrawFn, cluster: Cluster) -> list[dict[str, Any]]:
    """One to three ways to place bands, such that those of several tables are placed alike."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        level = draw(st.sampled_from([len(cluster.levels), *range(len(cluster.levels) + 1)]))
        size = cluster.group_size(level)
        some = tuple(draw(st.permutations(range(size)))[: draw(st.integers(1, size))])
        found.append(
            {
                "scope": cluster.scopes[level],
                "members": draw(st.sampled_from(["all", some])) if level else "all",
                "tier": draw(st.sampled_from(cluster.tier_names)),
                "order": draw(st.sampled_from(["spread", "blocks"])),
                "exchange": draw(st.sampled_from(["rows", "sums"])),
                "coalesced": draw(st.booleans()),
                "sync": draw(st.sampled_from(["dense", "sparse"])),
            }
        )
    return found


@st.composite
def placed_bands(
    draw: st.DrawFn, table: Table, cluster: Cluster, kinds: list[dict[str, Any]]
) -> tuple[Band, ...]:
    """Bands placed in some of the given ways, or now and then in any."""
    if not kinds or draw(st.sampled_from([False, False, False, True])):
        return draw(bands(table, cluster))
    rows = table.num_embeddings
    cuts = draw(st.sets(st.integers(1, max(1, rows - 1)), max_size=2))
    edges = sorted({0, rows, *(cut for cut in cuts if cut < rows)})
    found = []
    for start, stop in pairwise(edges):
        kind = dict(draw(st.sampled_from(kinds)))
        if table.why_rows:
            kind["exchange"] = "rows"
        offset = draw(st.integers(0, 5))
        found.append(Band(start=start, stop=stop, offset=offset, **kind))
    return tuple(draw(st.permutations(found)))


class Case:
    """A plan with batches and gradients for every rank and step."""

    def __init__(self, plan: Plan, seed: int, steps: int, exact: bool, samples: int | None = None):
        self.plan, self.exact, self.samples = plan, exact, samples
        # 16-bit numbers have 8 bits for what must not be rounded.
        self.coarse = exact and any(table.dtype != "fp32" for table, _ in plan)
        self.random = np.random.default_rng(seed)
        self.size = plan.cluster.num_devices
        self.weights = {t.name: self.values((t.num_embeddings, t.embedding_dim)) for t, _ in plan}
        self.weighted = {
            t.name: not self.coarse
            and t.pooling != "none"
            and (t.weights == "learned" or self.random.random() < 0.3)
            for t, _ in plan
        }
        self.steps, self.grads = [], []
        self.of_weights: list[list[dict]] = []  # gradients by step and rank, as torch has them
        for _ in range(steps):
            made = [self._batch() for _ in range(self.size)]
            self.steps.append([batch for batch, _ in made])
            self.grads.append([grads for _, grads in made])

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers whose sums are exact (1, 0 and -1, or multiples of 1/8), or ordinary ones."""
        if self.coarse:
            return self.random.integers(-1, 2, shape).astype(np.float32)
        if self.exact:
            return self.random.integers(-4, 5, shape).astype(np.float32) / 8
        return self.random.standard_normal(shape, dtype=np.float32) / 10

    def _batch(self) -> tuple[dict[str, Any], dict[str, Any]]:
        samples = self.samples or int(self.random.choice([0, 1, 2, 3, 5]))
        lengths_of = [0, 1, 2] if self.coarse else [0, 1, 2, 4] if self.exact else [0, 1, 2, 3, 4]
        batch, grads = {}, {}
        for table, _ in self.plan:
            for name in table.features:
                lengths = self.random.choice(lengths_of, samples).astype(np.int64)
                ids = self.random.integers(0, table.num_embeddings, lengths.sum())
                weights = None
                if self.weighted[table.name]:
                    weights = self.random.choice([0.5, 1, 2], len(ids)).astype(np.float32)
                batch[name] = (ids, lengths, weights)
                lines = len(ids) if table.pooling == "none" else samples
                grads[name] = self.values((lines, table.embedding_dim))
        return batch, grads

    def run(self, workers: Any, follow: float = 0.0, **options: Any) -> list[dict[str, Any]]:
        """Train on real processes."""
        args = (self.plan, self.weights, self.steps, self.grads, follow, options)
        return workers.run(self.size, train, *args)

    def reference(
        self, follow: float, scale: float, lr: float, changes: Changes = (), **numbers: Any
    ) -> tuple[dict, list[list[dict]]]:
        """Train with torch alone; outputs as the ranks should see them.

        `numbers` of tables by their names, if they are not the defaults at `lr`.
        """
        tables = {
            t.name: Reference(
                t,
                torch.from_numpy(self.weights[t.name].copy()),
                numbers.get(t.name) or default_numbers(t.optimizer, lr),
            )
            for t, _ in self.plan
        }
        outputs, self.of_weights = [], []
        for number, (batches, grads) in enumerate(zip(self.steps, self.grads, strict=True)):
            step: list[dict] = [{} for _ in batches]
            self.of_weights.append([{} for _ in batches])
            for table in tables.values():
                touched = []
                table.change(changes[number] if changes else {})
                for name in table.table.features:
                    parts = [batch[name] for batch in batches]
                    ids = torch.from_numpy(np.concatenate([p[0] for p in parts]))
                    lengths = torch.from_numpy(np.concatenate([p[1] for p in parts]))
                    touched.append(ids)
                    weights = None
                    if parts[0][2] is not None:
                        weights = torch.from_numpy(np.concatenate([p[2] for p in parts]))
                        weights.requires_grad_(table.table.weights == "learned")
                    out = table.look_up(ids, lengths, weights)
                    given = torch.from_numpy(np.concatenate([grad[name] for grad in grads]))
                    out.backward(given + follow * out.detach())
                    at = 0
                    for rank, grad in enumerate(grads):
                        lines = len(grad[name])
                        step[rank][name] = out[at : at + lines].detach().numpy()
                        at += lines
                    if weights is not None and weights.requires_grad:
                        found = np.zeros(0) if weights.grad is None else weights.grad.numpy()
                        cuts = np.cumsum([len(p[0]) for p in parts])[:-1]
                        for rank, mine in enumerate(np.split(found, cuts)):
                            self.of_weights[-1][rank][name] = mine
                table.step(torch.cat(touched), scale)
            outputs.append(step)
        return tables, outputs


def check(case: Case, results: list[dict], tables: dict, outputs: list, bitwise: bool) -> None:
    """All outputs, weights, copies and states against the reference."""
    for index, step in enumerate(outputs):
        for rank, expected in enumerate(step):
            for name, values in expected.items():
                got = results[rank]["outputs"][index][name]
                if bitwise:
                    assert np.array_equal(got, values), (index, rank, name)
                else:
                    # The first step has equal weights; later ones have what the updates differ by.
                    allowed = WEIGHTS if index else OUTPUTS
                    np.testing.assert_allclose(got, values, rtol=0, atol=allowed)
    for index, step in enumerate(case.of_weights):
        for rank, expected in enumerate(step):
            got = results[rank]["of_weights"][index]
            assert got.keys() == expected.keys()
            for name, values in expected.items():
                np.testing.assert_allclose(got[name], values, rtol=0, atol=WEIGHTS)
    covered = {t.name: np.zeros((t.num_embeddings, t.embedding_dim), int) for t, _ in case.plan}
    copies: dict[tuple, Any] = {}
    for result in results:
        for name, rows, (first, last), weights, state in result["shards"]:
            covered[name][rows, first:last] += 1
            reference = tables[name]
            expected = reference.weight.detach().numpy()[rows, first:last]
            if bitwise:
                assert np.array_equal(weights, expected), name
            else:
                np.testing.assert_allclose(weights, expected, rtol=0, atol=WEIGHTS)
            for key, values in state.items():
                whole = reference.state()[key].numpy()[rows]
                part = whole if whole.shape[1] == 1 else whole[:, first:last]
                np.testing.assert_allclose(values, part, rtol=0, atol=WEIGHTS)
            for slot, row in enumerate(rows):
                same = copies.setdefault((name, int(row), first), (weights[slot], state, slot))
                assert np.array_equal(same[0], weights[slot])
                for key, values in state.items():
                    assert np.array_equal(same[1][key][same[2]], values[slot])
    assert all((count > 0).all() for count in covered.values())
    check_last_outputs(case, results)


def check_counters(case: Case, results: list[dict], **options: Any) -> None:
    """Bytes and rows that were counted against what `rowtier replay` makes of the same batches."""
    weighted = frozenset(name for name, has in case.weighted.items() if has)
    facts = replayed(case, CostOptions(weighted=weighted, **options))
    counted = results[0]["counted"]
    for flow in FLOWS:
        for way in ("sent", "received"):
            expected = sum(getattr(step.flows[flow], way) for step in facts)
            assert np.array_equal(counted[way][flow], expected), (flow, way)
    # Bands add up to what was counted message by message.
    assert np.array_equal(counted["links"], counted["links_of_bands"])
    assert np.array_equal(counted["lookups"], sum(step.served for step in facts).sum(axis=0))
    assert np.array_equal(counted["read"], sum(step.read for step in facts))
    assert np.array_equal(counted["written"], sum(step.written for step in facts))


def replayed(case: Case, options: CostOptions) -> list[Any]:
    """The same batches through `rowtier replay`'s counter."""
    counter = Counter(case.plan, case.samples, options)
    names = [name for table, _ in case.plan for name in table.features]
    data = [
        {name: batch[name][:2] for name in names} for batches in case.steps for batch in batches
    ]
    found = windows(open_source(data, names), names, Wanted(counter.step_samples))
    return [facts for window in found for _, facts in counter.add(window)]


def check_last_outputs(case: Case, results: list[dict]) -> None:
    """What the ranks look up after training against torch on the weights they have then."""
    for table, _ in case.plan:
        whole = np.zeros((table.num_embeddings, table.embedding_dim), dtype=np.float32)
        for result in results:
            for name, rows, (first, last), weights, _ in result["shards"]:
                if name == table.name:
                    whole[rows, first:last] = weights
        reference = Reference(table, torch.from_numpy(whole), {"lr": 0.0})
        for rank, batch in enumerate(case.steps[-1]):
            for name in table.features:
                ids, lengths, weights = (
                    None if a is None else torch.from_numpy(a) for a in batch[name]
                )
                expected = reference.look_up(ids, lengths, weights).detach().numpy()
                got = results[rank]["last"][name]
                np.testing.assert_allclose(got, expected, rtol=0, atol=OUTPUTS)
