"""A plan folder that is being forged, and a kind of forgery."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from fault_kinds.honest_plans import Honest
from rowtier import Cluster, Plan, Profile
from rowtier.errors import UserError
from rowtier.plan.verify import verify

Numbers = np.random.Generator


@dataclass
class Forgery:
    """A copy of a plan folder that is being forged."""

    honest: Honest
    folder: Path
    data: dict[str, Any]  # of plan.json
    drops: list[str] = field(default_factory=list)  # seals that the forger leaves out
    agrees: bool = False  # claims are recomputed from the forged copies

    @property
    def certificate(self) -> dict[str, Any]:
        return dict(self.data["certificate"] or {})

    def claim(self, **changes: Any) -> bool:
        """Change the certificate, if there is one."""
        if self.data["certificate"] is None:
            return False
        self.data["certificate"] |= changes
        return True

    def prove(self, **changes: Any) -> bool:
        """Change the proof, if there is one with prices, and claim that the plan is the best."""
        proof = self.certificate.get("proof")
        if proof is None or not proof.get("prices"):
            return False
        self.claim(proof=proof | changes, bound=self.certificate["objective"])
        return True

    def seal(self) -> None:
        """Write the folder with all fingerprints that a forger can compute."""
        path = self.folder / "plan.json"
        try:
            cluster = Cluster.model_validate(self.data["cluster"])
            self.data["made_for"]["cluster"] = cluster.fingerprint
        except ValueError:
            pass
        self.data.pop("fingerprint", None)
        path.write_text(json.dumps(self.data))
        hash_anew(self.folder)
        try:
            plan = Plan.load(self.folder)
            if self.agrees and plan.certificate is not None:
                self._agree(plan)
                plan = Plan.load(self.folder)
            self.data["fingerprint"] = plan.fingerprint
        except UserError:
            self.data["fingerprint"] = "0" * 16  # it will not load, whatever it says
        for key in self.drops:
            self.data.pop(key, None)
        path.write_text(json.dumps(self.data))
        hash_anew(self.folder)

    def _agree(self, plan: Plan) -> None:
        """Claim what the forged copies say: the cost of the bands, and what is proved of it."""
        assert plan.certificate is not None
        cost = verify(replace(plan, certificate=None)).step_s
        for _ in range(2):
            plan = Plan.load(self.folder)
            assert plan.certificate is not None
            found = verify(plan)
            cost = found.recomputed or cost
            self.claim(objective=cost, bound=cost, rounds=[])
            (self.folder / "plan.json").write_text(json.dumps(self.data))
        found = verify(Plan.load(self.folder))
        least = next((m.accepted for m in found.mistakes if m.key == "certificate.bound"), None)
        if least is not None and "than " in least:
            self.claim(bound=float(least.split("than ")[1].split(" ")[0]))
        (self.folder / "plan.json").write_text(json.dumps(self.data))

    def recut(self, change: Callable[[Profile], Profile]) -> bool:
        """Change the copy of the statistics."""
        change(Profile.load(self.folder / "curve")).save(self.folder / "curve")
        self.agrees = True
        return True


def hash_anew(folder: Path) -> None:
    """Lists of files with their sizes and hashes say what is there now, inner folders first."""
    found = sorted(folder.rglob("manifest.json"), key=lambda path: -len(path.parts))
    for path in found:
        data = json.loads(path.read_text())
        for name, entry in data["files"].items():
            content = (path.parent / name).read_bytes()
            entry |= {"bytes": len(content), "xxh3": xxhash.xxh3_64(content).hexdigest()}
        path.write_text(json.dumps(data))


Change = Callable[[Forgery, Numbers], bool]  # False where there is nothing to forge


@dataclass(frozen=True)
class Kind:
    """A kind of forgery, and what it takes to see it."""

    change: Change
    copy: bool = False  # edits copies consistently: seen against the originals only
    illegal: bool = False  # what it makes is no plan at all, whatever is certified
