"""What public GPU measurements were made on: machines by their data sheets, rows by their heat.

Machines are those of a paper on embedding caches of several GPUs (UGache, SOSP 2023) and one H100.
Bandwidths are one way, from the vendors' data sheets: A100 80GB SXM, V100 SXM2 16GB, H100 SXM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from harness.folders import DATA
from rowtier import Cluster, Curve, Device, FeatureStats, Level, Profile, Table, TableStats, Tier
from rowtier.profile.curve import bucket_stops
from rowtier.synth.zipf import ZipfMass
from rowtier.work import Work

FILE = "criteo_tb_heat.json"
SLOT_RATIO = 1.2  # how much hotter a row is than one of the next slot
LAST_SEEN = 96  # later slots are rows that were never seen, cut into slots of equal size
SAMPLES = 10**9
TABLE = "criteo"
Heat = Literal["every slot", "seen slots"]


def read_public(folder: Path | None = None) -> dict[str, Any]:
    """The public figures; exit code 2 if they are not there."""
    path = (DATA if folder is None else folder) / FILE
    if not path.exists():
        print(f"{path}: not there; put the file there, or name its folder in ROWTIER_DATA",
              file=sys.stderr)  # fmt: skip
        raise SystemExit(2)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@dataclass(frozen=True)
class Setting:
    """One machine of the paper, and how much of the table each of its GPUs caches."""

    name: str  # as the file has it
    devices: int
    batch_size: int
    cached: float
    hbm: Tier
    pcie_bytes_per_s: float
    nvlink_bytes_per_s: float

    @cached_property
    def cluster(self) -> Cluster:
        """The machine. Every GPU reads all of the host's memory over a PCIe port of its own.

        So each has a tier of the host's size, in which the same rows lie. Work is what presets of
        GPUs guess for launches alone: the paper's times begin with distinct ids and end with
        distinct rows, so lookups are neither made distinct nor are rows handed out to them.
        """
        launches = ("step_s", "round_s", "table_s", "bundle_s", "band_s", "copied_s")
        guess = Cluster.preset("dgx-a100-2").work
        dram = Tier(
            name="dram",
            capacity_bytes=10**12,
            bandwidth_bytes_per_s=self.pcie_bytes_per_s,
            granularity_bytes=64,
        )
        node = Level(
            name="node",
            size=self.devices,
            bandwidth_bytes_per_s=self.nvlink_bytes_per_s,
            latency_s=3e-6,
        )
        return Cluster(
            name=self.name.split(",")[0],
            levels=(node,),
            device=Device(tiers=(self.hbm, dram)),
            work=Work(**{name: getattr(guess, name) for name in launches}),
        )


def _hbm(capacity_bytes: int, bandwidth_bytes_per_s: float) -> Tier:
    return Tier(
        name="hbm",
        capacity_bytes=capacity_bytes,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        granularity_bytes=32,
    )


SETTINGS = (
    # NVLink 600 GB/s and PCIe Gen4 x16 64 GB/s, both ways together.
    Setting("8xA100, cache 12 % of rows", 8, 65536, 0.12, _hbm(80 * 10**9, 2039e9), 32e9, 300e9),
    # NVLink 300 GB/s and PCIe Gen3 x16 32 GB/s, both ways together; all four are joined.
    Setting("4xV100, cache 2 % of rows", 4, 32768, 0.02, _hbm(16 * 10**9, 900e9), 16e9, 150e9),
)


def criteo_curve(slots: list[list[int]], heat: Heat) -> Curve:
    """The histogram as a curve: all slots by their rule, or without those that nobody saw."""
    kept = np.array([pair for pair in slots if heat == "every slot" or pair[0] <= LAST_SEEN])
    each = SLOT_RATIO ** -kept[:, 0].astype(np.float64)
    return Curve(np.cumsum(kept[:, 1]), each * kept[:, 1])


def criteo_profile(public: Mapping[str, Any], batch_size: int, heat: Heat) -> Profile:
    """Criteo Terabyte in one table: a sample looks one row up for each of its features."""
    slots, said = public["slots"]["rows"], public["lookups"]
    names = tuple(f"c{index}" for index in range(said["features"]))
    table = Table(
        name=TABLE,
        num_embeddings=sum(rows for _, rows in slots),
        embedding_dim=said["embedding_dim"],
        pooling="none",
        optimizer="sgd",
        features=names,
    )
    features = tuple(FeatureStats(name=n, present=SAMPLES, lookups=SAMPLES) for n in names)
    curve = criteo_curve(slots, heat)
    lookups = curve.lookups * (SAMPLES * len(names) / curve.total)
    return Profile(batch_size, (TableStats(table, SAMPLES, features, Curve(curve.stops, lookups)),))


# One H100: 10 tables of 1.68 M rows, 2²⁰ lookups a step in all.
H100_TABLES, H100_ROWS, H100_LOOKUPS, H100_ZIPF = 10, 1_680_000, 2**20, 1.05
H100_DISTINCT = 433_723


def one_h100() -> Cluster:
    """One GPU of the preset, with its own part of the host memory's bandwidth."""
    preset = Cluster.preset("dgx-h100-2")
    hbm, dram = preset.device.tiers
    own = {"shared_by": None, "bandwidth_bytes_per_s": preset.own_bandwidth(dram)}
    device = Device(tiers=(hbm, dram.model_copy(update=own)))
    return preset.model_copy(update={"name": "one-h100", "levels": (), "device": device})


def h100_profile(optimizer: str) -> Profile:
    """Pooled tables with one lookup a sample: FBGEMM runs all ten in one kernel, as bundles do."""
    stops = bucket_stops(H100_ROWS)
    mass = np.diff(ZipfMass(H100_ROWS, H100_ZIPF).share(stops.astype(np.float64)), prepend=0.0)
    stats = []
    for index in range(H100_TABLES):
        table = Table(
            name=f"t{index}",
            num_embeddings=H100_ROWS,
            embedding_dim=128,
            optimizer=optimizer,
            features=(f"f{index}",),
        )
        feature = FeatureStats(name=f"f{index}", present=SAMPLES, lookups=SAMPLES)
        stats.append(TableStats(table, SAMPLES, (feature,), Curve(stops, mass * SAMPLES)))
    return Profile(round(H100_LOOKUPS / H100_TABLES), tuple(stats))
