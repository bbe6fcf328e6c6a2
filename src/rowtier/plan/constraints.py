"""Constraints by hand: what a plan must do besides being fast.

tables:
  item: {tier: hbm}            # every row of it in this memory
  user: {device: 3}            # every row of it on this device
  C5: {scope: node}            # a copy in every node
  C7: {never_split: true}      # all on one device, whichever
  C8: {exchange: rows}         # rows travel to readers, no partial sums (or the other way: sums)
keep_together: [[C1, C2]]      # all on one device, the same
reserve:                       # bytes to leave free, on every device or on one
  - {tier: hbm, amount: 2GiB}
  - {tier: hbm, amount: 6GiB, device: 0}
links: {cluster: 100MB}        # the most that any device's (or group's) link carries a step
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from rowtier.band import Band, Bands
from rowtier.cluster import DEVICE, Cluster
from rowtier.cost.memory import Reserve
from rowtier.cost.step import StepCost
from rowtier.cost.time import busiest_link_bytes
from rowtier.cost.tree import tree_of
from rowtier.errors import Mistake
from rowtier.fields import Bytes, Count, Name
from rowtier.files import Noun
from rowtier.profile.profile import Profile
from rowtier.tables import Exchange, Table
from rowtier.units import show_bytes


class Pin(Noun):
    """What is decided about one table."""

    tier: Name | None = None
    device: Count | None = None
    scope: Name | None = None
    never_split: bool = Field(default=False, strict=True)
    exchange: Exchange | None = None

    @property
    def places(self) -> bool:
        """Whether it says where rows lie, and not only how they are sent."""
        return bool({*self.to_data()} - {"exchange"})

    @classmethod
    def cross_mistakes(cls, data: Mapping[str, Any]) -> Iterator[Mistake]:
        """A table on one device has one copy."""
        if data.get("scope") is not None:
            for key in ("device", "never_split"):
                if data.get(key) not in (None, False):
                    yield Mistake(
                        key, data[key], "a table with a scope has copies; drop one of them"
                    )


NO_PIN = Pin()


class ReservedBytes(Noun):
    """Bytes of a tier that rows may not use: of every device, or of one."""

    tier: Name
    amount_bytes: Bytes = Field(alias="amount")
    device: Count | None = None


class Constraints(Noun):
    """What a plan must do besides being fast."""

    tables: dict[Name, Pin] = Field(default_factory=dict)
    keep_together: tuple[tuple[Name, ...], ...] = ()
    reserve: tuple[ReservedBytes, ...] = ()
    links: dict[Name, Bytes] = Field(default_factory=dict)

    def pin(self, table: str) -> Pin:
        """What is decided about a table."""
        return self.tables.get(table, NO_PIN)

    def group(self, table: str) -> int | None:
        """Which of the groups that are kept together a table is in."""
        found = (i for i, names in enumerate(self.keep_together) if table in names)
        return next(found, None)

    def one_owner(self, table: str) -> bool:
        """Whether all rows of a table are to be on one device."""
        pin = self.pin(table)
        return pin.device is not None or pin.never_split or self.group(table) is not None

    def device(self, table: str) -> int | None:
        """The device that a table must be on, by its own pin or by one of its group."""
        group = self.group(table)
        names = (table,) if group is None else self.keep_together[group]
        pins = (self.pin(name).device for name in names)
        return next((device for device in pins if device is not None), None)

    def exchanges(self, table: Table) -> tuple[Exchange, ...]:
        """What may travel from owners to readers of a table, by its kind and by its pin."""
        pinned = self.pin(table.name).exchange
        return tuple(one for one in table.exchanges if pinned in (None, one))

    def exchange(self, table: Table) -> Exchange:
        """What methods send that do not choose: partial sums, unless only rows may travel."""
        return self.exchanges(table)[-1]

    def said_of(self, table: str) -> list[str]:
        """What is decided about a table, in words."""
        pin, group = self.pin(table), self.group(table)
        said = [f"{key} {value}" for key, value in pin.to_data().items() if key != "never_split"]
        if pin.never_split:
            said.append("never split")
        if group is not None:
            others = [name for name in self.keep_together[group] if name != table]
            said.append(f"together with {', '.join(others)}")
        return said

    @property
    def summary(self) -> str:
        """What there is of them, in words."""
        pinned = len([name for name in self.tables if self.said_of(name)])
        counts = {
            "pinned table": pinned,
            "group kept together": len(self.keep_together),
            "reserve": len(self.reserve),
            "limit of links": len(self.links),
        }
        return ", ".join(f"{count} × {what}" for what, count in counts.items() if count)

    @property
    def decides(self) -> bool:
        """Whether they take choices away, and not only memory."""
        return bool(self.tables or self.keep_together or self.links)

    @property
    def decides_places(self) -> bool:
        """Whether they take away more than ways to send rows."""
        placed = any(pin.places for pin in self.tables.values())
        return bool(placed or self.keep_together or self.links)

    def reserved(self, share: float) -> Reserve:
        """All memory that rows may not use."""
        return Reserve(share, tuple((r.tier, r.device, r.amount_bytes) for r in self.reserve))

    def mistakes(self, profile: Profile, cluster: Cluster) -> Iterator[Mistake]:
        """What does not fit the tables or the cluster, or each other."""
        tables = {stats.table.name: stats.table for stats in profile.stats}
        tiers = [tier.name for tier in cluster.device.tiers]
        for name, pin in self.tables.items():
            key = f"tables.{name}"
            if name not in tables:
                yield Mistake(key, name, "the profile has no such table; drop it or fix the name")
            elif not self.exchanges(tables[name]):
                why = f"{tables[name].why_rows}; accepted: rows"
                yield Mistake(f"{key}.exchange", pin.exchange, why)
            yield from _accepted(f"{key}.tier", pin.tier, tiers)
            yield from _accepted(f"{key}.scope", pin.scope, list(cluster.scopes))
            yield from _is_device(f"{key}.device", pin.device, cluster)
        yield from self._group_mistakes(set(tables))
        for index, entry in enumerate(self.reserve):
            yield from _accepted(f"reserve[{index}].tier", entry.tier, tiers)
            yield from _is_there(f"reserve[{index}].amount", entry, cluster)
            yield from _is_device(f"reserve[{index}].device", entry.device, cluster)
        for level in self.links:
            accepted = [known.name for known in cluster.levels]
            yield from _accepted("links", level, accepted)

    def _group_mistakes(self, names: set[str]) -> Iterator[Mistake]:
        seen: set[str] = set()
        for index, group in enumerate(self.keep_together):
            key = f"keep_together[{index}]"
            for name in group:
                if name not in names:
                    yield Mistake(key, name, "the profile has no such table; fix the name")
                if name in seen:
                    yield Mistake(key, name, "appears twice; merge the groups")
                if self.pin(name).scope is not None:
                    yield Mistake(key, name, "has a scope, so it has copies; drop one of them")
                seen.add(name)
            devices = sorted({p.device for n in group if (p := self.pin(n)).device is not None})
            if len(devices) > 1:
                yield Mistake(key, devices, "tables of one group are pinned to several devices")

    def violations(self, bands: Bands, cost: StepCost) -> Iterator[str]:
        """What a placement does not keep to, in words."""
        for name, mine in bands.items():
            yield from self._table_violations(name, mine, cost.cluster)
        for group in self.keep_together:
            homes = {band.members for name in group for band in bands[name]}
            if len(homes) > 1:
                yield f"keep_together: {', '.join(group)} are not on one device"
        for level, most, carried in self._links(cost):
            if carried > most:
                yield (
                    f"links.{level}: a link carries {show_bytes(carried)} a step, more than "
                    f"{show_bytes(most)}"
                )

    def _links(self, cost: StepCost) -> Iterator[tuple[str, int, float]]:
        for index, level in enumerate(cost.cluster.levels):
            if level.name in self.links:
                flows = cost.links.flows.values()
                carried = busiest_link_bytes(tree_of(cost.cluster), flows, index)
                yield level.name, self.links[level.name], carried

    def excess(self, cost: StepCost) -> dict[str, float]:
        """Per level how many times too much its busiest link carries."""
        return {name: carried / most for name, most, carried in self._links(cost) if carried > most}

    def _table_violations(
        self, name: str, bands: tuple[Band, ...], cluster: Cluster
    ) -> Iterator[str]:
        pin = self.pin(name)
        if pin.tier is not None and any(band.tier != pin.tier for band in bands):
            yield f"tables.{name}.tier: not all rows are in {pin.tier}"
        if pin.scope is not None and any(band.scope != pin.scope for band in bands):
            yield f"tables.{name}.scope: not all rows have a copy per {pin.scope}"
        sent = {band.exchange for band in bands if band.scope != DEVICE}
        if pin.exchange is not None and sent - {pin.exchange}:
            yield f"tables.{name}.exchange: not all of it goes by {pin.exchange}"
        if self.one_owner(name) and cluster.num_devices > 1:
            homes = {(band.scope, band.members) for band in bands}
            alone = {(cluster.top, (device,)) for device in range(cluster.num_devices)}
            if len(homes) > 1 or not homes <= alone:
                yield f"tables.{name}: not all rows are on one device"
            elif pin.device is not None and homes != {(cluster.top, (pin.device,))}:
                yield f"tables.{name}.device: the rows are not on device {pin.device}"


def over_capacity(cost: StepCost) -> Iterator[ReservedBytes]:
    """What all that is beside rows lacks of each tier: the most of any pool."""
    missing: dict[str, int] = {}
    for pool, used_bytes in cost.memory.in_pools(cost.cluster):
        over = used_bytes - pool.capacity_bytes
        missing[pool.tier] = max(missing.get(pool.tier, 0), over)
    for tier, amount in missing.items():
        if amount > 0:
            yield ReservedBytes(tier=tier, amount_bytes=amount)


def _accepted(key: str, value: str | None, accepted: list[str]) -> Iterator[Mistake]:
    if value is not None and value not in accepted:
        yield Mistake(key, value, f"accepted: {', '.join(accepted)}")


def _is_there(key: str, entry: ReservedBytes, cluster: Cluster) -> Iterator[Mistake]:
    for tier in cluster.device.tiers:
        if tier.name == entry.tier and entry.amount_bytes > tier.capacity_bytes:
            there = show_bytes(tier.capacity_bytes)
            yield Mistake(key, show_bytes(entry.amount_bytes), f"{tier.name} has {there}")


def _is_device(key: str, value: int | None, cluster: Cluster) -> Iterator[Mistake]:
    if value is not None and value >= cluster.num_devices:
        yield Mistake(key, value, f"devices are 0 to {cluster.num_devices - 1}")
