"""The cost model held against GPU measurements that others published; nothing was run on a GPU.

Rows of Criteo Terabyte by their heat (`criteo_tb_heat.json` of `../shared/data` or ROWTIER_DATA)
and what UGache, a cache of embeddings on several GPUs, measured on 8 A100 and on 4 V100. Rows are
only read. Three placements of the paper, as bands: `replicate`, every GPU caches the same hottest
rows; `partition`, all GPUs together cache the hottest rows once; `mix`, the hottest rows
everywhere, the next ones once. The rest lies in host memory, which each GPU reads itself. Where
`mix` cuts is what costs least by the model, as the paper's solver decides by a model of its own.
The other systems that the paper measured (HPS, SOK) are shown, not judged.

The file has rows in slots, each 1.2 times cooler than the one before. From 97 on they are the rows
that were never seen while counting, in pieces of equal size: the paper's public solver gives these
rows the last slot, and cuts slots that are too large into pieces. So they have no heat (`seen
slots`). Beside this reading stands the one that takes the file at its word, a slot's
number is its heat to the end (`every slot`, figures `*_every_slot`). Which one is right is not
published with the figures, and both had been computed when the first was put first.

    host_bytes_error     bytes that a GPU reads from host memory in `mix`, predicted / measured − 1,
    remote_bytes_error   and those from other GPUs: the error that is farthest from 0, of both
    order_agrees         share of the machines where the model ranks the three as the clock does;
                         placements that take equally long are not ranked
    h100_error           training on one H100, 10 tables in HBM or in host memory, SGD or Adam,
                         against FBGEMM: predicted / measured − 1, the farthest from 0 of four
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from harness.form import Measured, run
from harness.public_gpu.settings import (
    H100_DISTINCT,
    SETTINGS,
    TABLE,
    Heat,
    Setting,
    criteo_profile,
    h100_profile,
    one_h100,
    read_public,
)

from rowtier import Band, Profile, TableStats
from rowtier.cost.options import CostOptions
from rowtier.cost.step import StepCost, step_cost
from rowtier.cost.touch import table_basis, touched

MB = 1e6
READ_ONLY = CostOptions(training=False)
READINGS: dict[Heat, str] = {"seen slots": "", "every slot": "_every_slot"}
PLACEMENTS = {"mix": "UGache", "replicate": "replicate", "partition": "partition"}
SHOWN = ("HPS", "SOK")
H100_HEAT = "power law 1.05"
CUTS, FEW_CUTS = 200, 20  # at which `mix` is tried, besides the ends of slots
Bands = tuple[Band, ...]


def placed(copied: int, spread: int, rows: int) -> Bands:
    """The hottest rows on every GPU, the next ones once over all of them, the rest in the host."""
    ends = (copied, copied + spread, rows)
    homes: tuple[dict[str, Any], ...] = (
        {"scope": "device", "tier": "hbm"},
        {"scope": "node", "tier": "hbm", "coalesced": True},
        {"scope": "device", "tier": "dram"},
    )
    edges = zip((0, *ends[:-1]), ends, homes, strict=True)
    return tuple(Band(start=a, stop=b, **home) for a, b, home in edges if a < b)


@dataclass(frozen=True, eq=False)
class Machine:
    """A machine of the paper with the rows that it reads."""

    setting: Setting
    profile: Profile
    cuts: int = CUTS

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.profile.stats[0].table.num_embeddings

    @property
    def cached_rows(self) -> int:
        """Rows that fit into the cache of one GPU."""
        return int(self.setting.cached * self.rows)

    def cost(self, copied: int, spread: int) -> StepCost:
        """What a step takes that has so many rows on every GPU, and so many once."""
        bands = {TABLE: placed(copied, spread, self.rows)}
        return step_cost(bands, self.profile, self.setting.cluster, options=READ_ONLY)

    def with_copies(self, copied: int) -> StepCost:
        """What a step takes with full caches, whose copies take so many rows of each."""
        spread = (self.cached_rows - copied) * self.setting.devices
        return self.cost(copied, min(spread, self.rows - copied))

    def costs(self) -> dict[str, StepCost]:
        """The three placements."""
        cuts = np.unique(np.linspace(0, self.cached_rows, self.cuts).astype(int)).tolist()
        stops = self.profile.stats[0].curve.stops
        cuts += stops[stops < self.cached_rows].tolist()
        found = {cut: self.with_copies(cut) for cut in sorted({*cuts})}
        best = min(found, key=lambda cut: found[cut].step_s)
        ends = {"replicate": found[self.cached_rows], "partition": found[0]}
        return {"mix": found[best], **ends}

    @property
    def distinct_mb(self) -> float:
        """MB of the distinct rows that a GPU needs in a step."""
        (stats,) = self.profile.stats
        return _touched_rows(stats, self.profile) * stats.table.row_bytes / MB


def host_mb(cost: StepCost) -> float:
    """MB that the busiest GPU reads from host memory in a step."""
    return float(cost.read_bytes[:, cost.cluster.tier_names.index("dram")].max()) / MB


def remote_mb(cost: StepCost) -> float:
    """MB of rows that the busiest GPU gets from others in a step."""
    return float(cost.links.forward.received.max()) / MB


@dataclass(frozen=True)
class Line:
    """One figure that was published, beside the same by the model."""

    setting: str
    heat: str
    what: str
    measured: float
    predicted: float | None = None

    @property
    def error(self) -> float | None:
        """How far the prediction is off; None where nothing is predicted."""
        return None if self.predicted is None else self.predicted / self.measured - 1

    def row(self) -> dict[str, object]:
        """For the table; an error of more than a quarter has its reason beside it."""
        off = self.error is not None and abs(self.error) > 0.25
        return {
            **vars(self),
            "error": self.error,
            "why": WHY.get((self.heat, self.what), "not known") if off else "",
        }


UNCOUNTED = "what was counted fits into the caches; the file has no heat for the rest"
TORN = "all that was counted is cached, and the paper leaves some of it in the host"
LOCAL = "bytes of rows that were not counted are missing; HBM's full bandwidth is taken"
LINKS = "links as in the data sheets; the paper's log has them 3.6 times slower against HBM"
NO_HEAT = "numbers after 96 are pieces of one slot, not heat"
GUESSED = "1.05 ms are what the preset guesses for index work and buffers"
FEWER = "a fifth fewer distinct rows than measured; the rest is not known"
TIMES = {"mix": LOCAL, "replicate": LOCAL, "partition": LINKS}
WHY: dict[tuple[str, str], str] = {
    ("seen slots", "mix, MB from the host"): UNCOUNTED,
    ("seen slots", "mix, MB from other GPUs"): f"8 GPUs: {UNCOUNTED}. 4 GPUs: {TORN}",
    **{("seen slots", f"{name}, ms"): why for name, why in TIMES.items()},
    ("every slot", "distinct rows, MB"): NO_HEAT,
    ("every slot", "mix, MB from the host"): NO_HEAT,
    ("every slot", "mix, MB from other GPUs"): NO_HEAT,
    **{("every slot", f"{name}, ms"): NO_HEAT for name in PLACEMENTS},
    (H100_HEAT, "SGD in hbm, ms"): GUESSED,
    (H100_HEAT, "SGD in dram, ms"): FEWER,
}


def read_lines(machine: Machine, heat: Heat, public: Mapping[str, Any]) -> Iterator[Line]:
    """Bytes and times of one machine."""
    name = machine.setting.name
    measured, costs = public["measured_ms_per_step"][name], machine.costs()
    if machine.setting.devices == 8:  # the published bytes are said to be of these
        yield Line(name, heat, "distinct rows, MB", 104.0, machine.distinct_mb)
    mix = costs["mix"]
    yield Line(name, heat, "mix, MB from the host", measured["UGache_host_MB"], host_mb(mix))
    yield Line(name, heat, "mix, MB from other GPUs", measured["UGache_remote_MB"], remote_mb(mix))
    for placement, called in PLACEMENTS.items():
        predicted_ms = 1e3 * costs[placement].step_s
        yield Line(name, heat, f"{placement}, ms", measured[called], predicted_ms)
    for other in SHOWN:
        yield Line(name, heat, f"{other}, ms", measured[other])


def trained_lines(public: Mapping[str, Any]) -> Iterator[Line]:
    """Training times of one H100, tables in HBM or in host memory."""
    name, heat = "one H100", H100_HEAT
    published = public["h100_training"]
    measured = {
        "hbm": published["all in HBM (1.68 M rows a table)"]["FBGEMM"],
        "dram": published["10 % in HBM"]["FBGEMM UVM, no HBM"],
    }
    profile = h100_profile("sgd")
    distinct = sum(_touched_rows(stats, profile) for stats in profile.stats)
    yield Line(name, heat, "distinct rows", H100_DISTINCT, distinct)
    for tier, times_ms in measured.items():
        for optimizer, measured_ms in zip(("SGD", "Adam"), times_ms, strict=True):
            profile = h100_profile(optimizer.lower())
            bands = {s.table.name: placed_in(tier, s.table.num_embeddings) for s in profile.stats}
            predicted_ms = 1e3 * step_cost(bands, profile, one_h100()).step_s
            yield Line(name, heat, f"{optimizer} in {tier}, ms", measured_ms, predicted_ms)


def placed_in(tier: str, rows: int) -> Bands:
    """All rows in one tier."""
    return (Band(start=0, stop=rows, scope="device", tier=tier),)


def _touched_rows(stats: TableStats, profile: Profile) -> float:
    """Distinct rows of a table that one device needs in a step."""
    return float(table_basis(stats, profile, (1,))[touched(0)] @ stats.curve.widths)


def farthest(lines: list[Line], heat: str, what: str) -> float:
    """The error that is the farthest from 0 of the lines whose name begins so."""
    errors = [
        line.error
        for line in lines
        if (line.heat, line.what[: len(what)]) == (heat, what) and line.error is not None
    ]
    return max(errors, key=abs)


def order_agrees(lines: list[Line], heat: str) -> float:
    """Share of the machines whose placements the model ranks as they were measured."""
    times_s: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        if line.heat == heat and line.what.removesuffix(", ms") in PLACEMENTS:
            assert line.predicted is not None
            times_s.setdefault(line.setting, []).append((line.measured, line.predicted))
    return float(np.mean([_ranked_alike(pairs) for pairs in times_s.values()]))


def _ranked_alike(pairs: list[tuple[float, float]]) -> bool:
    predicted = [predicted for _, predicted in sorted(pairs)]
    return all(faster < slower for faster, slower in pairwise(predicted))


def figures_of(lines: list[Line]) -> dict[str, float | None]:
    """What is judged, and the same by the other reading."""
    found: dict[str, float | None] = {}
    for heat, end in READINGS.items():
        found[f"host_bytes_error{end}"] = farthest(lines, heat, "mix, MB from the host")
        found[f"remote_bytes_error{end}"] = farthest(lines, heat, "mix, MB from other GPUs")
        found[f"distinct_bytes_error{end}"] = farthest(lines, heat, "distinct rows, MB")
        found[f"order_agrees{end}"] = order_agrees(lines, heat)
    trained = ("SGD in", "Adam in")
    worst = [farthest(lines, H100_HEAT, what) for what in trained]
    return {**found, "h100_error": max(worst, key=abs)}


def measure(quick: bool) -> Measured:
    """Everything that was published, beside the same by the model."""
    public, cuts = read_public(), FEW_CUTS if quick else CUTS
    lines: list[Line] = []
    for heat in READINGS:
        for setting in SETTINGS:
            profile = criteo_profile(public, setting.batch_size, heat)
            lines += read_lines(Machine(setting, profile, cuts), heat, public)
    lines += trained_lines(public)
    return Measured([line.row() for line in lines], figures_of(lines))


if __name__ == "__main__":
    run("public_gpu", measure)
