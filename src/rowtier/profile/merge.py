"""Merging profiles: the merge of any partition of the data is the profile of the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rowtier.errors import MismatchError, UserError
from rowtier.profile.count import merged_rows
from rowtier.profile.distinct import DistinctIds
from rowtier.profile.slices import Slices, merge_slices
from rowtier.profile.table_stats import FeatureStats, TableStats
from rowtier.profile.windows import Windows, join_rows, merge_windows

if TYPE_CHECKING:
    from rowtier.profile.profile import Profile


def merge_profiles(profiles: Iterable[Profile]) -> Profile:
    """Add up profiles of parts of the same data; whole numbers, so the order does not matter."""
    parts = list(profiles)
    if not parts:
        raise UserError("there is no profile to merge; give at least one")
    first = parts[0]
    for other in parts[1:]:
        if other.tables != first.tables:
            raise MismatchError(
                f"profile {first.fingerprint} and profile {other.fingerprint} have different "
                "tables or batch sizes: profile both with the same tables.yaml"
            )
        if other.form != "counted" or first.form != "counted":
            raise UserError("a curve profile does not know its rows; merge counted profiles")
    for other in parts[1:]:
        _check_vocabularies(first, other)
        if other.horizon != first.horizon:
            raise MismatchError(
                f"profile {first.fingerprint} looks {first.horizon:g} times its length ahead and "
                f"profile {other.fingerprint} {other.horizon:g}: profile with one --horizon"
            )
    if len(parts) == 1:
        return first
    columns = zip(*(part.stats for part in parts), strict=True)
    return replace(first, stats=tuple(merge_tables(column) for column in columns))


def join_passes(passes: Sequence[Profile]) -> Profile:
    """Put together what several passes over the same samples counted of different rows."""
    if len(passes) == 1:
        return passes[0]
    columns = zip(*(part.stats for part in passes), strict=True)
    return replace(passes[0], stats=tuple(_join_table(column) for column in columns))


def _join_table(parts: Sequence[TableStats]) -> TableStats:
    first, rows = parts[0], parts[0].table.num_embeddings
    windows = [part.windows for part in parts if part.windows is not None]
    return replace(
        first,
        counts=merged_rows([p.counts for p in parts if p.counts is not None], rows),
        slices=merge_slices([p.slices for p in parts if p.slices is not None], same_samples=True),
        windows=join_rows(windows) if windows else None,
    )


def merge_tables(parts: Sequence[TableStats]) -> TableStats:
    """Add up statistics of one table, of parts of the same data whose rows are known."""
    table = parts[0].table
    counts = merged_rows([p.counts for p in parts if p.counts is not None], table.num_embeddings)
    columns = zip(*(part.features for part in parts), strict=True)
    features = tuple(_merge_feature(column) for column in columns)
    distinct: DistinctIds | None = None
    for part in parts:
        if part.distinct_ids is not None:
            ids = part.distinct_ids
            distinct = ids if distinct is None else distinct.merge(ids)
    samples = sum(part.samples for part in parts)
    merged = TableStats.counted(table, samples, features, counts, distinct)
    slices, windows = _merge_time(parts)
    return replace(
        merged,
        slices=slices,
        windows=windows,
        horizon=parts[0].horizon,
        vocabulary=parts[0].vocabulary,
    )


def _merge_time(parts: Sequence[TableStats]) -> tuple[Slices | None, Windows | None]:
    """What parts know over time; a part that does not know leaves the whole in the dark."""
    slices = [part.slices for part in parts if part.slices is not None]
    if len(slices) < len(parts):
        return None, None
    merged = merge_slices(slices)
    windows = [part.windows.coarsened(merged.bits) for part in parts if part.windows is not None]
    return merged, merge_windows(windows) if len(windows) == len(parts) else None


def _check_vocabularies(first: Profile, other: Profile) -> None:
    """Refuse parts in which the same row stands for different ids."""
    for ours, theirs in zip(first.stats, other.stats, strict=True):
        found = [s.vocabulary.fingerprint if s.vocabulary else None for s in (ours, theirs)]
        if found[0] != found[1]:
            raise MismatchError(
                f"profile {first.fingerprint} and profile {other.fingerprint} have different "
                f"vocabularies of table {ours.table.name!r}, so their rows stand for different "
                "ids: profile one part first, and the others with --vocabulary and its folder"
            )


def _merge_feature(parts: Sequence[FeatureStats]) -> FeatureStats:
    lengths: Counter[int] = Counter()
    for part in parts:
        lengths.update(dict(part.lengths))
    known = all(part.lengths or not part.present for part in parts)
    return FeatureStats(
        name=parts[0].name,
        present=sum(part.present for part in parts),
        lookups=sum(part.lookups for part in parts),
        lengths=tuple(sorted(lengths.items())) if known else (),
    )
