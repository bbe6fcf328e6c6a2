"""Tables that pins keep whole, on other devices; and bands with other fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from rowtier.band import Bands


def elsewhere(bands: Bands, groups: Sequence[tuple[str, ...]], devices: int) -> Iterator[Bands]:
    """One group of tables that are kept whole on another device, or two that change places."""
    owners = [bands[names[0]][0].members for names in groups]
    for names, owner in zip(groups, owners, strict=True):
        for device in range(devices):
            if (device,) != owner:
                yield moved_to(bands, names, (device,))
    for (one, here), (other, there) in combinations(zip(groups, owners, strict=True), 2):
        if here != there:
            yield moved_to(moved_to(bands, one, there), other, here)


def moved_to(bands: Bands, names: tuple[str, ...], members: object) -> Bands:
    """The same with all rows of some tables on other devices."""
    there = {n: tuple(b.model_copy(update={"members": members}) for b in bands[n]) for n in names}
    return {**bands, **there}


def changed(bands: Bands, **fields: object) -> Bands:
    """The same with some fields of all bands set."""
    return {n: tuple(b.model_copy(update=fields) for b in mine) for n, mine in bands.items()}
