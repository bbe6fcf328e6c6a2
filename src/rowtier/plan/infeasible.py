"""Why nothing fits: which constraint, how much is missing, and the smallest changes that help.

Rows that nobody pinned can lie anywhere, so bytes decide: each check compares what must lie
somewhere with what is there. The first one that fails is named, with what would fix it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rowtier.cluster import DEVICE, Cluster, Tier
from rowtier.cost.step import StepCost
from rowtier.errors import InfeasibleError
from rowtier.plan.constraints import Constraints
from rowtier.plan.options import PlanOptions
from rowtier.profile.profile import Profile
from rowtier.units import ask_bytes, show_bytes


def why_infeasible(
    profile: Profile, cluster: Cluster, options: PlanOptions, nearest: StepCost | None = None
) -> InfeasibleError:
    """The error to raise; `nearest` is the cost of the placement that came closest to limits."""
    return InfeasibleError(next(_Case(profile, cluster, options).reasons(nearest)))


class _Case:
    """One problem that nothing fits."""

    def __init__(self, profile: Profile, cluster: Cluster, options: PlanOptions):
        self.cluster, self.options = cluster, options
        self.wanted: Constraints = options.constraints
        self.sizes = {s.table.name: s.table.stored_bytes for s in profile.stats}
        self.tiers = cluster.device.tiers
        self.all_rows_bytes = sum(s.table.stored_row_bytes for s in profile.stats)
        self.needed = sum(size * self._copies(name) for name, size in self.sizes.items())

    def reasons(self, nearest: StepCost | None) -> Iterator[str]:
        """What is wrong, the plainest first; there is always one."""
        yield from self._everything()
        yield from self._devices()
        yield from self._tiers()
        yield from self._never_split()
        if nearest is not None:
            yield from self._links(nearest)
        yield (
            f"the tables need {show_bytes(self.needed)} and {self.cluster.name!r} has "
            f"{show_bytes(self._total())}{self._less}, but no way was found to pack them: add "
            f"capacity, a tier or devices{self._or_drop(self._pins())}"
        )

    @property
    def _less(self) -> str:
        less = str(self.options.reserved)
        return f" ({less})" if less else ""

    def _left(self, tier: Tier) -> int:
        """Bytes of a tier that rows may use on all devices together."""
        level = self.cluster.level_of(tier.shared_by or DEVICE)
        size, groups = self.cluster.group_size(level), self.cluster.num_groups(level)
        ranges = (range(g * size, (g + 1) * size) for g in range(groups))
        return sum(self.options.reserved.left(tier, holders) for holders in ranges)

    def _total(self) -> int:
        servers = sum(
            self.options.reserved.left(tier) * len(self.cluster.server_members(server))
            for server in self.cluster.servers
            for tier in server.tiers
        )
        return servers + sum(self._left(tier) for tier in self.tiers)

    def _copies(self, name: str) -> int:
        scope = self.wanted.pin(name).scope
        return 1 if scope is None else self.cluster.num_groups(self.cluster.level_of(scope))

    def _everything(self) -> Iterator[str]:
        """All tables, with the copies that scopes ask for, against all memory."""
        missing = self.needed - self._total()
        if missing <= 0:
            return
        copied = [name for name in self.sizes if self._copies(name) > 1]
        why = f", copies of {_names(copied)} counted," if copied else ""
        spare = {n: self.sizes[n] * (self._copies(n) - 1) for n in copied}
        yield (
            f"the tables need {show_bytes(self.needed)}{why} and {self.cluster.name!r} has "
            f"{show_bytes(self._total())}{self._less}: {show_bytes(missing)} is missing; "
            f"{self._more(missing)}{self._or_drop(_enough(spare, missing, 'scope'))}"
            f"{self._or_unreserve(missing)}"
        )

    def _devices(self) -> Iterator[str]:
        """Tables pinned to a device against its memory, and against a tier of it."""
        by_device: dict[int, dict[str, int]] = {}
        for name, size in self.sizes.items():
            device = self.wanted.device(name)
            if device is not None:
                by_device.setdefault(device, {})[name] = size
        for device, tables in sorted(by_device.items()):
            tiers = {tier.name: self.options.reserved.left(tier, (device,)) for tier in self.tiers}
            yield from self._short(f"device {device}", tables, sum(tiers.values()), "device")
            for tier, room in tiers.items():
                here = {n: s for n, s in tables.items() if self.wanted.pin(n).tier == tier}
                yield from self._short(f"{tier} of device {device}", here, room, "tier")

    def _tiers(self) -> Iterator[str]:
        """Tables pinned to a tier against that tier of all devices."""
        for tier in self.tiers:
            here = {
                name: size * self._copies(name)
                for name, size in self.sizes.items()
                if self.wanted.pin(name).tier == tier.name
            }
            where, room = f"{tier.name} of all devices", self._left(tier)
            yield from self._short(where, here, room, "tier", everywhere=tier)

    def _never_split(self) -> Iterator[str]:
        """Tables, or groups of them, that must be on one device, against the largest one."""
        most = max(
            sum(self.options.reserved.left(tier, (device,)) for tier in self.tiers)
            for device in range(self.cluster.num_devices)
        )
        groups = [*self.wanted.keep_together]
        groups += [(n,) for n in self.sizes if self.wanted.one_owner(n)]
        for names in groups:
            tables = {name: self.sizes[name] for name in names}
            kind = "keep_together" if len(names) > 1 else "never_split"
            yield from self._short("any one device", tables, most, kind)

    def _links(self, nearest: StepCost) -> Iterator[str]:
        pins = [f"tables.{n}.exchange" for n, pin in self.wanted.tables.items() if pin.exchange]
        for name, factor in sorted(self.wanted.excess(nearest).items(), key=lambda e: -e[1]):
            most = self.wanted.links[name]
            yield (
                f"links.{name} allows {show_bytes(most)} a step, and the least that was found is "
                f"{show_bytes(most * factor)}: {show_bytes(most * (factor - 1))} is missing; raise "
                f"the limit to {ask_bytes(most * factor)}, or profile with a smaller batch_size"
                f"{self._or_drop(pins[:3])}"
            )

    def _short(
        self,
        where: str,
        tables: dict[str, int],
        room: int,
        pin: str,
        everywhere: Tier | None = None,
    ) -> Iterator[str]:
        """That some tables need more than there is of a memory, of one device or of all of them."""
        needed = sum(tables.values())
        missing = needed - room
        if missing <= 0:
            return
        each = -(-missing // (self.cluster.num_devices if everywhere else 1))
        tier = (everywhere or self.tiers[-1]).name
        more = f"add {ask_bytes(self._before_reserve(each))} to {tier} of every device"
        yield (
            f"{_names(list(tables))} must be in {where}, need {show_bytes(needed)} "
            f"and it has {show_bytes(room)}{self._less}: {show_bytes(missing)} is missing; {more}"
            f"{self._or_drop(_enough(tables, missing, pin))}{self._or_unreserve(missing)}"
        )

    def _more(self, missing: int) -> str:
        devices = self.cluster.num_devices
        each = self._before_reserve(-(-missing // devices))
        said = f"add {ask_bytes(each)} to {self.tiers[-1].name} of every device (or a slower tier "
        said += "of that size)"
        one = self._total() // devices
        if one and not any(self._copies(name) > 1 for name in self.sizes):
            count = -(-missing // one)
            said += f", or {count} device{'s' if count > 1 else ''} more"
        return said

    def _before_reserve(self, wanted: int) -> int:
        """Bytes to add so that so many are left once a share of them is reserved.

        And room for a row or two of every table, as rows are not cut to fill a memory.
        """
        wanted += 2 * self.all_rows_bytes
        return -int(-wanted // max(1e-3, 1 - self.options.reserve))

    def _or_unreserve(self, missing: int) -> str:
        left_out = sum(
            tier.capacity_bytes * self.cluster.num_devices - self._left(tier)
            for tier in self.tiers
            if tier.shared_by is None
        )
        return ", or reserve less" if left_out >= missing else ""

    def _or_drop(self, pins: list[str]) -> str:
        return f", or drop {' and '.join(pins)}" if pins else ""

    def _pins(self) -> list[str]:
        return [f"tables.{name}" for name in self.wanted.tables][:3]


def _enough(tables: dict[str, int], missing: int, pin: str) -> list[str]:
    """The pins to drop: the smallest table that is as large as what is missing, or several."""
    alone = [name for name, size in tables.items() if size >= missing]
    if alone:
        names = [min(alone, key=lambda name: (tables[name], name))]
    else:
        names, found = [], 0
        for name in sorted(tables, key=lambda name: (-tables[name], name)):
            if found >= missing:
                break
            names.append(name)
            found += tables[name]
        if found < missing:
            return []
    if pin == "keep_together":
        return [f"{name!r} from its group" for name in names]
    return [f"tables.{name}.{pin}" for name in names]


def _names(names: list[str]) -> str:
    quoted = [repr(name) for name in names[:4]]
    if len(names) > 4:
        quoted.append(f"{len(names) - 4} more")
    return ", ".join(quoted)
