"""The loops over ids against the same thing said plainly."""

from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier.runtime.kernels import indices

RANKS = 3


class Asked(NamedTuple):
    """Bands of a bundle, some of which exchange sums, and bags of lookups."""

    bands: list[tuple[int, int, int, int, int]]  # start, stop, offset, rows of a block, members
    owners: list[list[int]]
    address: list[int]
    edges: list[int]

    def owner(self, address: int) -> int:
        for (start, stop, offset, block, members), owners in zip(
            self.bands, self.owners, strict=True
        ):
            if start <= address < stop:
                place = address - start
                return owners[place // block if block else (place + offset) % members]
        return RANKS

    def slot(self, address: int) -> int:
        start, _, _, block, members = self.bands[self.band(address)]
        return (address - start) % block if block else (address - start) // members

    def band(self, address: int) -> int:
        return next(i for i, band in enumerate(self.bands) if band[0] <= address < band[1])

    @property
    def padded(self) -> np.ndarray:
        most = max(map(len, self.owners))
        return np.array([owners + [-1] * (most - len(owners)) for owners in self.owners])


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    bands, owners, at = [], [], 0
    for _ in range(draw(st.integers(1, 4))):
        at += draw(st.integers(0, 5))  # rows between two bands come to the reader
        rows = draw(st.integers(1, 12))
        members = draw(st.permutations(range(RANKS)))[: draw(st.integers(1, RANKS))]
        block = -(-rows // len(members)) if draw(st.booleans()) else 0
        offset = 0 if block else draw(st.integers(0, len(members) - 1))
        bands.append((at, at + rows, offset, block, len(members)))
        owners.append(list(members))
        at += rows
    address = draw(st.lists(st.integers(0, at + 3), max_size=40))
    cuts = draw(st.lists(st.integers(0, len(address)), max_size=8))
    return Asked(bands, owners, address, [0, *sorted(cuts), len(address)])


def _bags(case: Asked) -> list[int]:
    return [b for b, (a, z) in enumerate(zip(case.edges, case.edges[1:], strict=False))
            for _ in range(a, z)]  # fmt: skip


@settings(deadline=None)  # the first one compiles
@given(asked(), st.sampled_from([np.uint32, np.uint64]))
def test_owners_find_the_lookups_that_readers_ask_for(case: Asked, kind: type) -> None:
    address = np.array(case.address, dtype=np.int32)
    bands, bag_of = np.array(case.bands), _bags(case)
    found = indices.owners_of(address, bands, case.padded, RANKS)
    assert found.tolist() == [case.owner(entry) for entry in case.address]

    marked = np.empty(len(address), dtype=kind)
    counts, lookups, bags, starts = indices.ask_bags(
        address, found, np.array(case.edges), RANKS, marked
    )
    wanted = [[i for i, owner in enumerate(found) if owner == rank] for rank in range(RANKS)]
    flat = [i for some in wanted for i in some]
    assert counts.tolist() == list(map(len, wanted))
    assert lookups.tolist() == flat
    assert bags.tolist() == [bag_of[i] for i in flat]
    begins = [
        [k == 0 or bag_of[i] != bag_of[some[k - 1]] for k, i in enumerate(some)] for some in wanted
    ]
    fresh = [new for some in begins for new in some]
    assert starts.tolist() == np.flatnonzero(fresh).tolist()
    bit = 8 * marked.itemsize - 1
    sent = [case.address[i] | int(new) << bit for i, new in zip(flat, fresh, strict=True)]
    assert marked[: len(flat)].tolist() == sent

    # Each rank, as if all others had asked it for the same: two ranks, one after the other.
    for rank in range(RANKS):
        mine = np.array(sent[sum(counts[:rank]) :][: counts[rank]], dtype=kind)
        got = indices.own_bags(np.concatenate([mine, mine]), np.array([len(mine)] * 2), bands)
        entries = [case.address[i] for i in wanted[rank]] * 2
        new = begins[rank] * 2
        assert got[0].tolist() == entries
        assert got[1].tolist() == (np.cumsum(new) - 1).tolist()
        assert got[2].tolist() == [case.band(entry) for entry in entries]
        assert got[3].tolist() == [case.slot(entry) for entry in entries]
        assert got[4].tolist() == np.flatnonzero(new).tolist()


@settings(deadline=None)  # the first one compiles
@given(st.lists(asked(), min_size=1, max_size=3), st.data())
def test_addresses_move_to_the_bundle_with_whom_to_ask(
    cases: list[Asked], data: st.DataObject
) -> None:
    """Parts of several tables, in any order; rows between bands come to the reader."""
    lines, owners, edges, stops = [], [], [0], []
    for case in cases:
        at = 0
        for (start, stop, offset, block, members), own in zip(case.bands, case.owners, strict=True):
            if start > at:
                lines.append((start, 7, 0, 0, 1, 0))
                owners.append([RANKS])
            first = start - (0 if block else offset)
            lines.append((stop, 100 * len(lines), 1000 if block else 0, first, members, block))
            owners.append(own[:members])
            at = stop
        edges.append(len(lines))
        stops.append(at)
    tables = data.draw(st.lists(st.integers(0, len(cases) - 1), min_size=1, max_size=4))
    parts = [[entry for entry in cases[t].address if entry < stops[t]] for t in tables]
    address = np.array([entry for part in parts for entry in part], dtype=np.int32)
    ends, padded = np.cumsum([len(part) for part in parts]), Asked([], owners, [], []).padded
    to, who = indices.move_addresses(
        address, ends, np.array(tables), np.array(edges), np.array(lines), padded
    )
    expected = []
    for table, part in zip(tables, parts, strict=True):
        for entry in part:
            here = range(edges[table], edges[table + 1])
            line = next(i for i in here if entry < lines[i][0])
            _, added, apart, first, members, block = lines[line]
            position = (entry - first) // block if block else (entry - first) % members
            moved = entry + added + (apart * position if block else 0)
            expected.append((moved, owners[line][position]))
    assert list(zip(to.tolist(), who.tolist(), strict=True)) == expected


@settings(deadline=None)  # the first one compiles
@given(asked(), st.data())
def test_edges_of_bags_in_which_some_lookups_are_left(case: Asked, data: st.DataObject) -> None:
    chosen = [i for i in range(len(case.address)) if data.draw(st.booleans())]
    left = indices.edges_within(np.array(chosen, dtype=np.int64), np.array(case.edges))
    assert left.tolist() == [sum(i < edge for i in chosen) for edge in case.edges]


@settings(deadline=None)  # the first one compiles
@given(st.lists(st.lists(st.integers(0, 20)), min_size=1, max_size=4), st.sets(st.integers(1, 19)))
def test_rising_entries_are_counted_as_all_others(ranks: list[list[int]], cuts: set[int]) -> None:
    entries = np.array([entry for some in ranks for entry in sorted(some)], dtype=np.int64)
    counts, starts = np.array(list(map(len, ranks))), np.array([0, *sorted(cuts), 21])
    found = indices.count_rising(entries, counts, starts)
    assert found.tolist() == indices.count_spans(entries, counts, starts).tolist()
    assert found.sum(axis=0).tolist() == counts.tolist()


def test_no_lookups_at_all() -> None:
    none, edges = np.empty(0, dtype=np.int32), np.zeros(4, dtype=np.int64)
    counts, *rest = indices.ask_bags(none, none, edges, RANKS, np.empty(0, dtype=np.uint32))
    assert counts.tolist() == [0] * RANKS
    assert [len(part) for part in rest] == [0] * 3
