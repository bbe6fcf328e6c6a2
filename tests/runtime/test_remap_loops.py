"""The loop that remaps all features at once, against one look-up after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rowtier.plan.remap import look_up_all


@settings(deadline=None)  # the first one compiles
@given(st.data())
def test_every_part_is_looked_up_in_its_own_table(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    tables = np.random.default_rng(0).integers(0, 1000, sum(sizes)).astype(np.int32)
    starts = np.cumsum([0, *sizes])
    reads = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=6))
    ids = st.integers(-2, 10)
    parts = [data.draw(st.lists(ids, max_size=6)) for _ in reads]
    places = np.array([(starts[table], sizes[table]) for table in reads])
    missing = np.ones(len(reads), dtype=np.bool_)
    ends = np.cumsum([len(part) for part in parts])
    flat = np.array([row for part in parts for row in part], dtype=np.int64)
    found = look_up_all(flat, ends, places, tables, missing)
    for table, part, end, lacks in zip(reads, parts, ends, missing, strict=True):
        assert lacks == any(not 0 <= row < sizes[table] for row in part)
        if not lacks:
            here = found[end - len(part) : end].tolist()
            assert here == [tables[starts[table] + row] for row in part]
