"""The machine: devices with memory tiers, grouped into a tree of levels joined by links.

Level 0 is the device, then the levels as listed, from the device outwards. Devices are
numbered 0 … W−1 so that the devices of one group are neighbours. *Holders* are all that
can keep rows: the devices, then the memory-only servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rowtier.errors import Mistake, UserError
from rowtier.fields import (
    MOST_DEVICES,
    MOST_LEVELS,
    MOST_SERVERS,
    MOST_TIERS,
    Bytes,
    BytesPerSecond,
    DeviceCount,
    Granularity,
    Name,
    Seconds,
    ServerCount,
    whole_number,
)
from rowtier.files import Noun, mappings
from rowtier.reading import StrPath, duplicates
from rowtier.work import Work

DEVICE = "device"
Efficiency = Annotated[float, Field(gt=0.0, le=1.0)]


class Tier(Noun):
    """One kind of memory of a holder; a group that it is `shared_by` has one of it."""

    name: Name
    capacity_bytes: Bytes = Field(alias="capacity")
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    granularity_bytes: Granularity = Field(default=1, alias="granularity")
    shared_by: Name | None = None


class Level(Noun):
    """One level of the tree: how many groups of the level below it joins, and by which links."""

    name: Name
    size: DeviceCount
    bandwidth_bytes_per_s: BytesPerSecond = Field(alias="bandwidth")
    latency_s: Seconds = Field(default=0.0, alias="latency")
    message_s: Seconds = Field(default=0.0, alias="message")  # more for each peer of a round
    per: Literal["device", "group"] = "device"
    # What the exchange of rows reaches of the bandwidth, and what keeping copies equal reaches.
    exchange_efficiency: Efficiency = 1.0
    sync_efficiency: Efficiency = 1.0


class Device(Noun):
    """What every device has: memory tiers, fastest first."""

    tiers: tuple[Tier, ...] = Field(min_length=1, max_length=MOST_TIERS)


class Server(Noun):
    """Memory-only members: `count` of them in every group of `level`. They never read."""

    name: Name
    count: ServerCount = 1
    level: Name
    tiers: tuple[Tier, ...] = Field(min_length=1, max_length=MOST_TIERS)
    bandwidth_bytes_per_s: BytesPerSecond | None = Field(default=None, alias="bandwidth")


class Cluster(Noun):
    """A tree of groups of devices, the links between them and the memory in them.

    `overlap` lists tiers, or levels, that run side by side; all others take turns. `work` is what
    a rank does besides moving bytes.
    """

    name: Name
    levels: tuple[Level, ...] = Field(default=(), max_length=MOST_LEVELS)
    device: Device
    servers: tuple[Server, ...] = ()
    overlap: tuple[tuple[Name, ...], ...] = ()
    work: Work = Work()

    def __hash__(self) -> int:
        """Of a part that tells most clusters apart: what a cluster is unfolded to is kept by it."""
        links = (level.bandwidth_bytes_per_s for level in self.levels)
        return hash((self.name, *links, *(tier.capacity_bytes for tier in self.device.tiers)))

    @classmethod
    def preset(cls, name: str) -> Cluster:
        """One of the clusters that come with rowtier; `PRESETS` lists them."""
        if name not in PRESETS:
            raise UserError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
        with resources.as_file(resources.files("rowtier") / "presets" / f"{name}.yaml") as path:
            return cls.load(path)

    @classmethod
    def local(cls, ranks: int) -> Cluster:
        """This machine with a device for every rank; figures are guessed, as in preset `local`."""
        if isinstance(ranks, bool) or not isinstance(ranks, Integral):
            raise UserError(f"ranks {ranks!r}: give a whole number, as many as there are processes")
        if not 1 <= ranks <= MOST_DEVICES:
            raise UserError(f"ranks {ranks}: give 1 to {MOST_DEVICES}")
        machine = cls.preset("local")
        node = machine.levels[0].model_copy(update={"size": int(ranks)})
        return machine.model_copy(update={"levels": (node,)})

    @classmethod
    def open(cls, path_or_preset: StrPath) -> Cluster:
        """A cluster file, or a preset by its name (a file of that name wins)."""
        name = str(path_or_preset)
        if name in PRESETS and not Path(name).exists():
            return cls.preset(name)
        if not Path(name).exists():
            raise UserError(
                f"{name}: there is no such cluster file and no such preset; "
                f"the presets are {', '.join(PRESETS)}"
            )
        return cls.load(name)

    @classmethod
    def cross_mistakes(cls, data: Mapping[str, Any]) -> Iterator[Mistake]:
        """Names are unique and every level that is referred to exists."""
        names: list[object] = [_named(level) for _, level in mappings(data, "levels")]
        for index, name in duplicates([DEVICE, *names]):
            why = "appears twice" if name != DEVICE else "is taken by level 0"
            yield Mistake(f"levels[{index - 1}].name", name, f"{why}; give each level its own name")
        yield from _too_many(data)
        for index, name in duplicates(s.get("name") for _, s in mappings(data, "servers")):
            yield Mistake(f"servers[{index}].name", name, "appears twice; give each its own name")
        for index, server in mappings(data, "servers"):
            if isinstance(server.get("level"), str) and server["level"] not in names:
                yield _unknown_level(f"servers[{index}].level", server["level"], names)
            yield from _tier_mistakes(f"servers[{index}]", server, [])
        device = data.get("device")
        if isinstance(device, Mapping):
            yield from _tier_mistakes("device", device, names)
        yield from _overlap_mistakes(data, names)

    @property
    def num_devices(self) -> int:
        """How many devices read (W)."""
        return self.group_size(len(self.levels))

    @property
    def scopes(self) -> tuple[str, ...]:
        """The levels at which a full copy can be kept, from `device` outwards."""
        return (DEVICE, *(level.name for level in self.levels))

    @property
    def top(self) -> str:
        """The scope that spans the whole cluster."""
        return self.scopes[-1]

    def level_of(self, scope: str) -> int:
        """The number of a scope: 0 for `device`, then outwards."""
        if scope not in self.scopes:
            raise KeyError(f"no level {scope!r}; there are {', '.join(self.scopes)}")
        return self.scopes.index(scope)

    def group_size(self, level: int) -> int:
        """Devices in one group of a level (n_k)."""
        size = 1
        for entry in self.levels[:level]:
            size *= entry.size
        return size

    def num_groups(self, level: int) -> int:
        """How many groups a level has."""
        return self.num_devices // self.group_size(level)

    @property
    def num_holders(self) -> int:
        """Devices and servers together."""
        return self.num_devices + sum(
            server.count * self.num_groups(self.level_of(server.level)) for server in self.servers
        )

    def members(self, level: int, group: int = 0) -> tuple[int, ...]:
        """The holders in one group of a level: its devices, then its servers.

        A band's `members` are positions in this list, the same in every group.
        """
        size = self.group_size(level)
        holders = list(range(group * size, (group + 1) * size))
        first = self.num_devices
        for server in self.servers:
            at = self.level_of(server.level)
            groups = self.num_groups(at)
            if at <= level:
                inside = groups // self.num_groups(level)
                start = first + group * inside * server.count
                holders += range(start, start + inside * server.count)
            first += groups * server.count
        return tuple(holders)

    def server_members(self, server: Server) -> tuple[int, ...]:
        """The positions of all servers of one kind in the whole cluster's `members`."""
        kinds = [self._server_of(holder) for holder in self.members(len(self.levels))]
        return tuple(i for i, kind in enumerate(kinds) if kind is not None and kind[0] is server)

    def sharers(self, tier: Tier) -> int:
        """How many devices have a tier together."""
        return 1 if tier.shared_by is None else self.group_size(self.level_of(tier.shared_by))

    def own_bandwidth(self, tier: Tier) -> float:
        """Bytes per second that a device has of a tier, if all its sharers read alike."""
        return tier.bandwidth_bytes_per_s / self.sharers(tier)

    def tiers_of(self, holder: int) -> tuple[Tier, ...]:
        """The memory tiers of a device or a server."""
        server = self._server_of(holder)
        return self.device.tiers if server is None else server[0].tiers

    def holder_name(self, holder: int) -> str:
        """What people call a holder: "device 3", "cloud 0"."""
        server = self._server_of(holder)
        return f"device {holder}" if server is None else f"{server[0].name} {server[1]}"

    def _server_of(self, holder: int) -> tuple[Server, int] | None:
        index = holder - self.num_devices
        if index < 0:
            return None
        for server in self.servers:
            here = server.count * self.num_groups(self.level_of(server.level))
            if index < here:
                return server, index
            index -= here
        raise IndexError(f"holder {holder} does not exist; there are {self.num_holders}")

    @property
    def tier_names(self) -> tuple[str, ...]:
        """All tier names, the devices' first, then the servers'."""
        tiers = [*self.device.tiers, *(tier for server in self.servers for tier in server.tiers)]
        return tuple(dict.fromkeys(tier.name for tier in tiers))


def _named(entry: Mapping[str, Any]) -> str | None:
    """The name of an entry; what is no name is passed over, as its field reports it."""
    name = entry.get("name")
    return name if isinstance(name, str) else None


def _too_many(data: Mapping[str, Any]) -> Iterator[Mistake]:
    devices, inside = 1, {DEVICE: 1}  # devices in a group of each level
    for _, level in mappings(data, "levels"):
        devices *= max(1, whole_number(level.get("size")) or 1)
        inside[str(level.get("name"))] = devices
    if devices > MOST_DEVICES:
        yield Mistake("levels", devices, f"devices in all, and {MOST_DEVICES} is the most")
    servers = sum(
        (whole_number(server.get("count", 1)) or 0)
        * (devices // inside.get(str(server.get("level")), devices))
        for _, server in mappings(data, "servers")
    )
    if servers > MOST_SERVERS:
        yield Mistake("servers", servers, f"servers in all, and {MOST_SERVERS} is the most")


def _tier_mistakes(
    where: str, owner: Mapping[str, Any], shareable: list[object]
) -> Iterator[Mistake]:
    tiers = mappings(owner, "tiers")
    for index, name in duplicates(tier.get("name") for _, tier in tiers):
        yield Mistake(f"{where}.tiers[{index}].name", name, "appears twice; give each its own name")
    for index, tier in tiers:
        shared_by = tier.get("shared_by")
        if isinstance(shared_by, str) and shared_by not in shareable:
            yield _unknown_level(f"{where}.tiers[{index}].shared_by", shared_by, shareable)


def _overlap_mistakes(data: Mapping[str, Any], levels: list[object]) -> Iterator[Mistake]:
    """What runs side by side is all tiers or all levels, and each in one list only."""
    device, servers = data.get("device"), mappings(data, "servers")
    owners = [device] if isinstance(device, Mapping) else []
    owners += [server for _, server in servers]
    tiers = {_named(tier) for owner in owners for _, tier in mappings(owner, "tiers")}
    lists, seen = data.get("overlap"), set[object]()
    for index, names in enumerate(lists if isinstance(lists, (list, tuple)) else ()):
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            continue  # the field says so itself
        where = f"overlap[{index}]"
        if len(names) < 2:
            yield Mistake(where, list(names), "names less than two; write two tiers or two levels")
        for name in names:
            if name in seen:
                yield Mistake(where, name, "is listed twice; what runs side by side is one list")
            seen.add(name)
        if not (set(names) <= tiers or set(names) <= set(levels)):
            known = ", ".join(map(str, [*sorted(map(str, tiers)), *levels]))
            yield Mistake(
                where, list(names), f"are not all tiers, or all levels; there are {known}"
            )


def _unknown_level(key: str, value: object, levels: list[object]) -> Mistake:
    listed = ", ".join(str(name) for name in levels) or "none here"
    return Mistake(key, value, f"there is no such level; accepted: {listed}")


PRESETS = (
    "recshard-16",
    "dgx-a100-2",
    "dgx-h100-2",
    "gb200-nvl72",
    "mi300x-8",
    "torchrec-default",
    "federated-1000",
    "parameter-server",
    "local",
)
