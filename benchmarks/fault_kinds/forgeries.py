"""Forge plans, and see whether `rowtier verify` certifies anything that is false.

A forger edits a plan folder and computes all fingerprints anew that can be computed. A *false
certificate* is one that holds though the plan is none, or with a proved gap that is smaller than
the true one. Copies of profile and cluster that were edited consistently are seen against the
originals alone; everything else must be seen from the folder, too. A plan whose verdict says that
it rests on other wishes (memory left free, other work) is about another problem, and no lie.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fault_kinds.forgery import Forgery, Kind
from fault_kinds.forgery_kinds import KINDS
from fault_kinds.honest_plans import Honest, honest_plans
from rowtier import Plan
from rowtier.errors import UserError
from rowtier.plan.verify import verify

CLOSE = 1e-6  # of a gap, that rounding may hide
MODES = ("alone", "originals")


def run(
    count: int, seed: int = 0, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Try so many forgeries, every kind on every plan before any again."""
    rng = np.random.default_rng(seed)
    tried, crashes, false = 0, 0, 0
    kinds: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    with TemporaryDirectory() as place:
        plans = list(honest_plans(Path(place), rng))
        for number, (honest, name) in enumerate(_cases(plans, count, rng)):
            folder = Path(place) / f"forged-{number}"
            shutil.copytree(honest.folder, folder)
            if _forged(honest, folder, KINDS[name], rng):
                tried += 1
                kinds[name]["tried"] += 1
                for mode in MODES:
                    found = _outcome(honest, folder, KINDS[name], mode)
                    kinds[name][f"{found} {mode}"] += 1
                    crashes += found == "crashed"
                    false += found == "false"
            shutil.rmtree(folder)
            progress(min(1.0, tried / count))
            if tried >= count:
                break
    return {
        "forgeries": tried,
        "kinds": len(kinds),
        "plans": len(plans),
        "false_certificates": false,
        "crashes": crashes,
        "by_kind": {name: dict(kinds[name]) for name in sorted(kinds)},
    }


def _cases(plans: list[Honest], count: int, rng: np.random.Generator) -> list[tuple[Honest, str]]:
    """Plans and kinds in turn, so that a few show every kind; most apply to some plans only."""
    cases: list[tuple[Honest, str]] = []
    while len(cases) < 4 * count + len(plans) * len(KINDS):
        shift = rng.permutation(len(plans))
        for turn in range(len(plans)):
            for index, name in enumerate(KINDS):
                cases.append((plans[shift[(turn + index) % len(plans)]], name))
    return cases


def _forged(honest: Honest, folder: Path, kind: Kind, rng: np.random.Generator) -> bool:
    data = json.loads((folder / "plan.json").read_text())
    forgery = Forgery(honest, folder, data)
    if not kind.change(forgery, rng):
        return False
    forgery.seal()
    return True


def _outcome(honest: Honest, folder: Path, kind: Kind, mode: str) -> str:
    """`found`, `harmless`, `stated` as another problem, `unseen` as it may be, or `false`."""
    given = (honest.profile, honest.cluster) if mode == "originals" else ()
    try:
        verdict = verify(folder, *given)
    except UserError:
        return "found"
    except Exception:  # whatever it is, nobody should see it
        return "crashed"
    if not verdict.holds:
        return "found"
    if kind.copy and mode == "alone":
        return "unseen"
    if kind.illegal:
        return "false"
    if (verdict.covers, verdict.assumes) != honest.said:
        return "stated"
    true_gap = honest.gap(Plan.load(folder))
    if not verdict.gap_is_proved or verdict.gap is None:
        return "harmless"  # claimed, and said to be no more
    return "harmless" if true_gap is not None and verdict.gap >= true_gap - CLOSE else "false"
