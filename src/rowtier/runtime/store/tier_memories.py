"""Which memory keeps each tier of a plan."""

from __future__ import annotations

from collections.abc import Mapping

from rowtier.errors import UserError
from rowtier.reading import StrPath
from rowtier.runtime.device.side import DeviceSide
from rowtier.runtime.kernels.side import ComputeSide
from rowtier.runtime.store.device_memory import DeviceMemory
from rowtier.runtime.store.memory import Disk, Memory, Ram

Tiers = Mapping[str, StrPath | Disk]


def memory_of(tier: str, side: ComputeSide) -> Memory:
    """Memory of a tier: the host's, or of a device its own for HBM and pinned for all others."""
    if side.on_host:
        return Ram()
    assert isinstance(side, DeviceSide)
    return DeviceMemory(side, pinned=not is_device_memory(tier))


def is_device_memory(tier: str) -> bool:
    """Whether a tier is a GPU's own memory, by its name."""
    return "hbm" in tier.lower()


def memories(tier_names: tuple[str, ...], given: Tiers, side: ComputeSide) -> dict[str, Memory]:
    """What keeps each tier: files where a folder is given, else memory that the side reaches."""
    found: dict[str, Memory] = {name: memory_of(name, side) for name in tier_names}
    for name, place in given.items():
        if name not in tier_names:
            raise UserError(f"tiers: no tier {name!r}; the plan's are {', '.join(tier_names)}")
        found[name] = place.new() if isinstance(place, Disk) else Disk(place)
    return found
