"""The Plan: for every table its bands, with what they were made for and how good they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rowtier.band import Band, Bands
from rowtier.cluster import Cluster
from rowtier.cost.options import CostOptions
from rowtier.errors import MismatchError, UserError
from rowtier.files import fingerprint_of
from rowtier.plan.certificate import (
    GIGA,
    STEP_VIEWS,
    Caution,
    Certificate,
    MadeFor,
    Price,
    Proof,
    ProvedCase,
    RoundKind,
    RoundsUsed,
)
from rowtier.plan.constraints import Constraints
from rowtier.profile.order import RowOrder, rows_by_position
from rowtier.profile.profile import Profile
from rowtier.reading import StrPath
from rowtier.tables import Table

if TYPE_CHECKING:
    from rowtier.plan.remap import Remapper
    from rowtier.profile.vocabulary import Vocabulary

__all__ = [
    "GIGA",
    "STEP_VIEWS",
    "Caution",
    "Certificate",
    "MadeFor",
    "Plan",
    "Price",
    "Proof",
    "ProvedCase",
    "RoundKind",
    "RoundsUsed",
]


@dataclass(frozen=True, eq=False)
class Plan:
    """Where every row lives.

    `profile` is the curve form of the statistics and `order` the touched rows of each
    table, hottest first (untouched rows follow in id order); a plan made from a curve
    has no order, and can be predicted but neither replayed nor trained.
    """

    method: str
    bands: Bands
    cluster: Cluster
    profile: Profile
    made_for: MadeFor
    order: RowOrder | None = None
    certificate: Certificate | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    constraints: Constraints | None = None  # that it keeps to
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)  # by table

    @classmethod
    def build(
        cls,
        method: str,
        profile: Profile,
        cluster: Cluster,
        bands: Bands,
        certificate: Certificate | None = None,
    ) -> Plan:
        """What a planner returns: the bands, with everything they need to be read alone.

        Bands that no plan may have are refused, as `load` does.
        """
        from rowtier.plan.check import refuse_mistakes

        order = None
        if profile.form == "counted":
            order = {s.table.name: s.counts.rows for s in profile.stats if s.counts is not None}
        made_for = MadeFor(profile=profile.fingerprint, cluster=cluster.fingerprint)
        words = {s.table.name: s.vocabulary for s in profile.stats if s.vocabulary is not None}
        plan = cls(
            method,
            bands,
            cluster,
            profile.to_curve(),
            made_for,
            order,
            certificate,
            vocabularies=words,
        )
        refuse_mistakes(plan, f"plan {method!r}")
        return plan

    def __repr__(self) -> str:
        bands = sum(len(found) for found in self.bands.values())
        tables, where = len(self.bands), self.cluster.name
        said = f"<Plan: {self.method}, {tables} tables in {bands} bands on {where}"
        if self.certificate is not None:
            said += f", gap {self.certificate.gap:.2%}"
        return f"{said}>"

    def __iter__(self) -> Iterator[tuple[Table, tuple[Band, ...]]]:
        for stats in self.profile.stats:
            yield stats.table, self.bands[stats.table.name]

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of the placement and of what it was made for."""
        facts: dict[str, Any] = {
            "method": self.method,
            "bands": {name: [b.to_data() for b in bands] for name, bands in self.bands.items()},
            "made_for": self.made_for.to_data(),
            "certificate": self.certificate.to_data() if self.certificate else None,
            "curve": self.profile.fingerprint,
            "origin": dict(self.origin),
            "constraints": self.constraints.to_data() if self.constraints else None,
        }
        if self.vocabularies:
            words = {name: found.fingerprint for name, found in self.vocabularies.items()}
            facts["vocabularies"] = words
        arrays = (
            [] if self.order is None else [self.order[s.table.name] for s in self.profile.stats]
        )
        return fingerprint_of(facts, *map(np.ascontiguousarray, arrays))

    def check_made_for(
        self, *, profile: Profile | None = None, cluster: Cluster | None = None
    ) -> None:
        """Raise `MismatchError` if the plan was made for another profile or cluster."""
        if profile is not None and profile.fingerprint != self.made_for.profile:
            raise MismatchError(
                f"the plan was made for profile {self.made_for.profile} and this is profile "
                f"{profile.fingerprint}: plan again with this profile, or give the other one"
            )
        if cluster is not None and cluster.fingerprint != self.made_for.cluster:
            raise MismatchError(
                f"the plan was made for cluster {self.cluster.name!r} ({self.made_for.cluster}) "
                f"and this is {cluster.name!r} ({cluster.fingerprint}): plan again with this "
                "cluster, or give the other one"
            )

    def needs_rows(self, table: Table) -> bool:
        """Whether a pooled table may not go by sums: its weights are learned, or a pin says so."""
        wanted = self.constraints or Constraints()
        return table.pooling != "none" and "sums" not in wanted.exchanges(table)

    @property
    def assumed(self) -> CostOptions:
        """What the plan was made for, beside profile and cluster."""
        dense_s = self.origin.get("options", {}).get("dense_s", 0.0)
        return CostOptions(dense_s=dense_s, training=not self.serves)

    @property
    def serves(self) -> bool:
        """Whether the plan is for a cluster that only reads: `serve` was asked for."""
        return bool(self.origin.get("options", {}).get("serve", False))

    def assuming(self, dense_s: float) -> Plan:
        """The same plan beside another time of the rest of the model: no bound is for that."""
        if self.serves and dense_s:
            raise UserError("the plan serves, so there is no sync for other work to hide: no dense")
        options = {**self.origin.get("options", {}), "dense_s": dense_s}
        proved = self.certificate if dense_s == self.assumed.dense_s else None
        return replace(self, origin={**self.origin, "options": options}, certificate=proved)

    @property
    def hotness_order(self) -> RowOrder | None:
        """The row order, if it is one by heat: not where rows stay as an earlier plan put them."""
        return None if any(stats.arranged for stats in self.profile.stats) else self.order

    def rows_in_order(self, table: str) -> NDArray[np.int64]:
        """All row ids of a table by position."""
        if self.order is None:
            raise UserError(
                "the plan has no row order, because it was made from a curve; "
                "plan from a counted profile to get one"
            )
        return rows_by_position(self.order[table], self.profile[table].table.num_embeddings)

    def rows_of(self, table: str, ids: Any) -> NDArray[np.int64]:
        """The rows that ids stand for in a table; −1 is no lookup. See `rowtier.rows_of`."""
        from rowtier.profile.ids import rows_of

        known = [stats.table.name for stats in self.profile.stats]
        if table not in known:
            raise UserError(f"the plan has no table {table!r}; it has {', '.join(known[:8])}")
        return rows_of(self.profile[table].table, ids, self.vocabularies.get(table))

    def remapper(self, *, rows: bool = False) -> Remapper:
        """What turns ids into addresses, for data loader workers: needs no torch.distributed.

        With `rows` batches hold rows already, as `rows_of` makes them (−1: no lookup).
        """
        from rowtier.plan.remap import Remapper

        return Remapper.of(self, rows=rows)

    def save(self, folder: StrPath) -> None:
        """Write a plan folder; an earlier plan there is replaced in one step."""
        from rowtier.plan.storage import save

        save(self, folder)

    @classmethod
    def load(cls, folder: StrPath) -> Plan:
        """Read a plan folder, check every invariant, and list all mistakes in one error."""
        from rowtier.folders import read_steadily
        from rowtier.plan.storage import load

        return read_steadily(folder, lambda path: load(cls, path))
