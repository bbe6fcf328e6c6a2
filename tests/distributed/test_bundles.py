"""Tables that are alike are run as one, and every row stays where the plan puts it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

pytest.importorskip("torch", reason="torch is not installed")

from cases import cluster_of, drawn_plans
from strategies import counted

from rowtier import Band, Plan, Profile, Table
from rowtier.cost.bundling import PiecesRun, pieces_run
from rowtier.cost.tree import tree_of
from rowtier.plan.bags import Jagged
from rowtier.runtime.exchange.bundle_layout import bundles_of
from rowtier.runtime.exchange.bundles import Bundle, Window
from rowtier.runtime.store.address import pieces_of
from rowtier.runtime.store.world import World

CLUSTER = cluster_of((3,))


def table(name: str, rows: int = 10, **facts: Any) -> Table:
    given = {"embedding_dim": 4, "pooling": "sum", "optimizer": "sgd"} | facts
    return Table(name=name, num_embeddings=rows, features=(f"f_{name}",), **given)


def band(stop: int, **facts: Any) -> Band:
    return Band(**({"start": 0, "stop": stop, "scope": "level0", "tier": "ram"} | facts))


def plan_of(*placed: tuple[Table, tuple[Band, ...]]) -> Plan:
    stats = tuple(counted(t, np.arange(t.num_embeddings)[::-1].copy()) for t, _ in placed)
    return Plan.build("made", Profile(4, stats), CLUSTER, {t.name: b for t, b in placed})


def bundled(plan: Plan, rank: int = 0) -> tuple[list[Bundle], dict[int, Window], Any]:
    world = World(rank, tree_of(plan.cluster), None)
    pieces, remapper = pieces_of(plan, world), plan.remapper()
    bundles, windows = bundles_of(pieces, remapper.tables, remapper.reads, dict.fromkeys(pieces, 0))
    return bundles, windows, pieces


def names(plan: Plan) -> list[list[str]]:
    return [[t.name for t in bundle.tables] for bundle in bundled(plan)[0]]


def test_tables_alike_are_run_as_one_whatever_their_rows_and_offsets() -> None:
    plan = plan_of(
        (table("a"), (band(10, offset=1),)),
        (table("b", 7), (band(7, offset=2),)),
        (table("c", embedding_dim=8), (band(10),)),
        (table("d", pooling="mean"), (band(10),)),
        (table("e"), (band(10, tier="ssd", exchange="sums"),)),
    )
    assert names(plan) == [["a", "b", "e"], ["c"], ["d"]]
    joined = bundled(plan)[0][0]
    assert [(p.band.tier, p.band.exchange) for p in joined.pieces] == [
        ("ram", "rows"),
        ("ssd", "sums"),
    ]


def test_blocks_copies_and_spread_rows_are_run_as_one() -> None:
    plan = plan_of(
        (table("spread"), (band(10),)),
        (table("blocks"), (band(10, order="blocks"),)),
        (table("blocks2", 7), (band(7, order="blocks"),)),
        (table("copies"), (band(10, scope="device"),)),
        (table("copies2", 5), (band(5, scope="device"),)),
    )
    assert names(plan) == [["spread", "blocks", "blocks2", "copies", "copies2"]]
    joined = bundled(plan)[0][0]
    assert [(p.band.scope, p.band.order) for p in joined.pieces] == [
        (plan.cluster.top, "spread"),
        (plan.cluster.top, "blocks"),
        ("device", "spread"),
    ]


@given(drawn_plans())
@settings(max_examples=60, deadline=None)
def test_the_cost_model_knows_how_many_pieces_are_run(plan: Plan) -> None:
    bundles = bundled(plan)[0]
    pieces = [piece for bundle in bundles for piece in bundle.pieces]
    copied = sum(piece.copies > 1 for piece in pieces)
    several = sum(len(bundle.tables) > 1 for bundle in bundles)
    mixed = frozenset(
        table.name
        for bundle in bundles
        if len({piece.pooled for piece in bundle.pieces}) > 1
        for table in bundle.tables
    )
    expected = PiecesRun(several, len(pieces), copied, mixed)
    assert pieces_run(plan, tree_of(plan.cluster)) == expected


def test_columns_gateways_and_sequences_stay_alone() -> None:
    halves = (band(10, columns=(0, 2)), band(10, columns=(2, 4)))
    plan = plan_of(
        (table("columns"), halves),
        (table("staged"), (band(10, staged=True, exchange="sums"),)),
        (table("sequence", pooling="none"), (band(10),)),
        (table("sequence2", pooling="none"), (band(10),)),
        (table("one_block"), (band(10, order="blocks", members=(1,)),)),
        (table("one"), (band(10, members=(1,)),)),
    )
    assert names(plan) == [
        *([name] for name in ("columns", "staged", "sequence", "sequence2")),
        ["one_block", "one"],
    ]


@given(drawn_plans())
@settings(max_examples=60, deadline=None)
def test_every_row_keeps_its_holder_and_has_a_slot_of_its_own(plan: Plan) -> None:
    for rank in range(plan.cluster.num_devices):
        bundles, windows, pieces = bundled(plan, rank)
        run = {piece.number: piece for bundle in bundles for piece in bundle.pieces}
        taken: dict[int, set[int]] = {number: set() for number in run}
        for bundle in bundles:
            for index, here in enumerate(bundle.tables):
                for piece in (p for layer in pieces[here.name] for p in layer):
                    window = windows[piece.number]
                    address = np.arange(piece.band.start, piece.band.stop)
                    moved = move(bundle, index, address)
                    there = run[window.number]
                    assert (there.holders(moved) == piece.holders(address)).all()
                    mine = piece.holders(address) == rank
                    if mine.any() and piece.position >= 0:
                        slots = there.slots(moved[mine])
                        assert (slots == piece.slots(address[mine]) + window.base).all()
                        assert slots.max() < there.rows_here
                        assert not taken[window.number] & set(slots.tolist())
                        taken[window.number] |= set(slots.tolist())


def move(bundle: Bundle, table_index: int, address: np.ndarray) -> np.ndarray:
    """Addresses in the bundle, as lookups of all these addresses have them."""
    if bundle.moves is None:
        return address
    none = Jagged(np.empty(0, dtype=np.int32), np.zeros(2, dtype=np.int64), None, None)
    edges = np.array([0, len(address)])
    asked = Jagged(address.astype(np.int32), edges, None, None)
    first = bundle.table_of.index(table_index)
    parts = [asked if read == first else none for read in range(len(bundle.reads))]
    lookups = bundle.lookups(parts)
    assert bundle.count(lookups).sum() == len(address)
    return lookups.address.astype(np.int64)
