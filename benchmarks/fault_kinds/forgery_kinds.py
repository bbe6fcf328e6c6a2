"""Every kind of forgery of a plan folder, as a change of what the folder holds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash

from fault_kinds.forgery import Change, Forgery, Kind, Numbers
from rowtier import Profile


def _tier(at: Forgery, index: int = 0) -> dict[str, Any]:
    tier: dict[str, Any] = at.data["cluster"]["device"]["tiers"][index]
    return tier


def _bound_raised(at: Forgery, rng: Numbers) -> bool:
    low, high = at.certificate.get("bound", 0.0), at.certificate.get("objective", 0.0)
    return low < high and at.claim(bound=low + (high - low) * float(rng.uniform(0.05, 1)))


def _objective_lowered(at: Forgery, rng: Numbers) -> bool:
    return at.claim(objective=at.certificate.get("objective", 0) * float(rng.uniform(0.3, 0.99)))


def _both_lowered(at: Forgery, rng: Numbers) -> bool:
    cost = at.certificate.get("objective", 0) * float(rng.uniform(0.3, 0.99))
    return at.claim(objective=cost, bound=cost)


def _without_raised(at: Forgery, rng: Numbers) -> bool:
    rounds = at.certificate.get("rounds", [])
    lacking = [dict(one) for one in rounds if one.get("without") is not None]
    if not lacking or not at.certificate.get("proof"):
        return False
    lacking[0]["without"] *= float(rng.uniform(1.1, 9))
    return at.claim(rounds=lacking)


def _rounds_hidden(at: Forgery, _: Numbers) -> bool:
    rounds = [one | {"rounds": one["rounds"] + 1} for one in at.certificate.get("rounds", [])]
    return bool(rounds) and at.claim(rounds=rounds)


def _capacity(at: Forgery, rng: Numbers) -> bool:
    proof = at.certificate.get("proof")
    if proof is None:
        return False
    count = max(1, len(proof.get("prices", ())))
    share = [float(rng.choice([0.0, -1e9, 1.0])) for _ in range(count)]
    return at.claim(proof=proof | {"capacity_bytes": share}, bound=at.certificate["objective"])


def _priced(value: float) -> Change:
    def change(at: Forgery, rng: Numbers) -> bool:
        prices = list((at.certificate.get("proof") or {}).get("prices", ()))
        if prices:
            prices[int(rng.integers(len(prices)))] = value
        return at.prove(prices=prices)

    return change


def _weights(*, scale: float, sign: float = 1.0) -> Change:
    def change(at: Forgery, _: Numbers) -> bool:
        weights = list((at.certificate.get("proof") or {}).get("holder_weights", ()))
        if weights:
            weights = [scale * w for w in weights]
            weights[-1] *= sign
        return at.prove(holder_weights=weights)

    return change


def _masses_cut(at: Forgery, rng: Numbers) -> bool:
    masses = (at.certificate.get("proof") or {}).get("masses")
    if not masses:
        return False
    kept = int(rng.integers(1, 4))
    cuts = [m[: max(2, len(m) // 2)] if kept == 1 else m[kept - 1 :] for m in masses]
    return at.prove(masses=cuts)


def _case_added(at: Forgery, rng: Numbers) -> bool:
    proof = at.certificate.get("proof") or {}
    prices = [float(p) * 10 ** float(rng.uniform(-3, 6)) for p in proof.get("prices", ())]
    return at.prove(cases=[*proof.get("cases", ()), {"prices": prices, "relayed": False}])


def _proof_added(at: Forgery, _: Numbers) -> bool:
    if at.certificate.get("proof") is not None:
        return False
    proof = {"prices": [1e-9] * len(at.honest.cluster.tier_names), "holder_weights": [1.0]}
    return at.claim(proof=proof, bound=at.certificate.get("objective"))


def _dropped(*keys: str, curve: bool = False) -> Change:
    def change(at: Forgery, _: Numbers) -> bool:
        at.drops += keys
        if curve:
            path = at.folder / "curve" / "profile.json"
            data = json.loads(path.read_text())
            data.pop("fingerprint")
            path.write_text(json.dumps(data))
        return True

    return change


def _stamp(value: str) -> Change:
    def change(at: Forgery, _: Numbers) -> bool:
        at.data["made_for"]["profile"] = value
        return True

    return change


def _covers(at: Forgery, rng: Numbers) -> bool:
    own = at.certificate.get("covers")
    texts = ("all plans", "plans of every kind that bands can say, by time of a step")
    return own is not None and at.claim(covers=next(t for t in rng.permutation(texts) if t != own))


def _view(at: Forgery, rng: Numbers) -> bool:
    own = at.certificate.get("view")
    views = [v for v in ("step", "recshard", "sca", "flexshard", "gap") if v != own]
    at.agrees = True
    return at.claim(view=str(rng.choice(views)))


def _method(at: Forgery, rng: Numbers) -> bool:
    if at.data["certificate"] is None:
        return False
    names = [m for m in ("joint", "recshard", "sca", "row-wise", "best") if m != at.data["method"]]
    at.data["method"] = str(rng.choice(names))
    return at.claim(bound=at.certificate["objective"])


def _all_fast(at: Forgery, _: Numbers) -> bool:
    at.agrees, fast = True, _tier(at)["name"]
    bands = [band for bands in at.data["tables"].values() for band in bands]
    for band in bands:
        band |= {"tier": fast, "scope": "device", "members": "all"}
    return True


def _band(**changes: Any) -> Change:
    def change(at: Forgery, rng: Numbers) -> bool:
        bands = at.data["tables"][str(rng.choice(list(at.data["tables"])))]
        bands[int(rng.integers(len(bands)))] |= changes
        at.agrees = True
        return True

    return change


def _band_dropped(at: Forgery, rng: Numbers) -> bool:
    at.data["tables"][str(rng.choice(list(at.data["tables"])))].pop()
    at.agrees = True
    return True


def _machine(edit: Callable[[dict[str, Any], Numbers], object]) -> Change:
    def change(at: Forgery, rng: Numbers) -> bool:
        at.agrees = True
        before = json.dumps(at.data["cluster"])
        edit(at.data["cluster"], rng)
        return json.dumps(at.data["cluster"]) != before

    return change


def _slower_links(data: dict[str, Any], _: Numbers) -> None:
    for level in data["levels"]:
        level["latency"] = "1ms"


def _faster_links(data: dict[str, Any], _: Numbers) -> None:
    for level in data["levels"]:
        level |= {"bandwidth": "900GB/s", "latency": 0}


def _larger(data: dict[str, Any], _: Numbers) -> None:
    for tier in data["device"]["tiers"]:
        tier["capacity"] = "64GiB"


def _smaller(data: dict[str, Any], _: Numbers) -> None:
    data["device"]["tiers"][-1]["bandwidth"] = "150GB/s"


def _more_servers(data: dict[str, Any], _: Numbers) -> None:
    tier = {"name": "spare", "capacity": "1GiB", "bandwidth": "1GB/s"}
    more = {"name": "more", "level": data["levels"][0]["name"], "tiers": [tier]}
    data["servers"] = [*data.get("servers", ()), more]


def _fewer_lookups(at: Forgery, rng: Numbers) -> bool:
    share = int(rng.integers(2, 9))

    def fewer(profile: Profile) -> Profile:
        return replace(profile, stats=tuple(replace(s, samples=share * s.samples) for s in
                                            profile.stats))  # fmt: skip

    return at.recut(fewer)


def _smaller_batch(at: Forgery, _: Numbers) -> bool:
    return at.recut(lambda profile: replace(profile, batch_size=max(1, profile.batch_size // 4)))


def _narrow(at: Forgery, _: Numbers) -> bool:
    def narrow(profile: Profile) -> Profile:
        tables = [s.table.model_copy(update={"embedding_dim": 2}) for s in profile.stats]
        pairs = zip(profile.stats, tables, strict=True)
        return replace(profile, stats=tuple(replace(s, table=t) for s, t in pairs))

    for bands in at.data["tables"].values():
        if any(band.get("columns") for band in bands):
            return False
    return at.recut(narrow)


def _order(swap: bool) -> Change:
    def change(at: Forgery, rng: Numbers) -> bool:
        if at.data["order"] is None:
            return False
        entry = at.data["order"][str(rng.choice(list(at.data["order"])))]
        path, rows = at.folder / "order.bin", int(entry["rows"])
        size = np.dtype(entry["dtype"]).itemsize
        whole = bytearray(path.read_bytes())
        part = slice(entry["offset"], entry["offset"] + rows * size)
        order = np.frombuffer(bytes(whole[part]), entry["dtype"]).copy()
        order = order[::-1].copy() if swap else np.where(order == order[0], order[-1], order)
        whole[part] = order.tobytes()
        if "xxh3" in entry:
            entry["xxh3"] = xxhash.xxh3_64(order.tobytes()).hexdigest()
        path.write_bytes(bytes(whole))
        return rows > 1

    return change


def _wished(**changes: Any) -> Change:
    def change(at: Forgery, _: Numbers) -> bool:
        options = at.data["origin"].get("options", {})
        at.data["origin"]["options"] = options | changes
        at.agrees = True
        return bool(at.data["origin"]["options"] != options)

    return change


def _unwished(at: Forgery, _: Numbers) -> bool:
    at.agrees = True
    return bool(at.data["origin"].pop("options", None))


def _constraints_dropped(at: Forgery, _: Numbers) -> bool:
    return at.data.pop("constraints", None) is not None


def _constrained(data: dict[str, Any]) -> Change:
    def change(at: Forgery, _: Numbers) -> bool:
        if at.data["method"] != "joint":
            return False
        at.data["constraints"] = data
        at.agrees = True
        covers = at.certificate["covers"].removesuffix(", within the constraints")
        return at.claim(covers=f"{covers}, within the constraints" if "tables" in data else covers)

    return change


def _left_forged(at: Forgery, _: Numbers) -> bool:
    at.agrees = True
    return at.claim(left=[{"tier": _tier(at)["name"], "amount": _tier(at)["capacity"]}])


KINDS: Mapping[str, Kind] = {
    "bound raised": Kind(_bound_raised),
    "bound at the objective": Kind(lambda at, _: at.claim(bound=at.certificate.get("objective"))),
    "bound above the objective": Kind(
        lambda at, _: at.claim(bound=2 * at.certificate.get("objective", 1) + 1)
    ),
    "bound below zero": Kind(lambda at, _: at.claim(bound=-1.0)),
    "bound not a number": Kind(lambda at, _: at.claim(bound=math.nan)),
    "bound without end": Kind(lambda at, _: at.claim(bound=math.inf)),
    "objective lowered": Kind(_objective_lowered),
    "objective and bound lowered": Kind(_both_lowered),
    "objective not a number": Kind(lambda at, _: at.claim(objective=math.nan)),
    "statistics not a number": Kind(lambda at, _: at.claim(from_statistics=math.nan)),
    "gap written": Kind(lambda at, _: at.claim(gap=0.0)),
    "rounds without raised": Kind(_without_raised),
    "rounds miscounted": Kind(_rounds_hidden),
    "capacity of the proof": Kind(_capacity),  # once certified a gap of 319 times as 0.00 %
    "price of 1e308": Kind(_priced(1e308)),
    "price of 1e14": Kind(_priced(1e14)),
    "price below zero": Kind(_priced(-1e-6)),
    "price not a number": Kind(_priced(math.nan)),
    "price without end": Kind(_priced(math.inf)),
    "no prices": Kind(lambda at, _: at.prove(prices=[])),
    "weights doubled": Kind(_weights(scale=2.0)),
    "weight below zero": Kind(_weights(scale=3.0, sign=-1.0)),
    "no weights": Kind(lambda at, _: at.prove(holder_weights=[])),
    "masses cut": Kind(_masses_cut),
    "no masses": Kind(lambda at, _: at.prove(masses=[[]])),
    "masses for ever": Kind(lambda at, _: at.prove(masses=[[i / 999 for i in range(1000)]] * 6)),
    "sync weight of 9": Kind(lambda at, _: at.prove(sync_weight=9.0)),
    "sync weight below zero": Kind(lambda at, _: at.prove(sync_weight=-9.0)),
    "case added": Kind(_case_added),
    "case of a level that is none": Kind(
        lambda at, _: at.prove(cases=[{"prices": [1e9, 1e9], "widest": "moon"}])
    ),
    "proof added": Kind(_proof_added),
    "proof dropped": Kind(
        lambda at, _: at.claim(proof=None, bound=at.certificate.get("objective"))
    ),
    "fingerprint dropped": Kind(_dropped("fingerprint"), illegal=True),
    "fingerprint of the copy dropped": Kind(_dropped(curve=True), illegal=True),
    "stamp of the profile emptied": Kind(_stamp(""), illegal=True),
    "stamp of the profile changed": Kind(_stamp("0123456789abcdef"), copy=True, illegal=True),
    "covers changed": Kind(_covers, illegal=True),
    "view changed": Kind(_view, illegal=True),
    "method changed": Kind(_method, illegal=True),
    "all rows fast, everywhere": Kind(_all_fast, illegal=True),
    "band of no tier": Kind(_band(tier="moon"), illegal=True),
    "band of no member": Kind(_band(members=[99]), illegal=True),
    "band beyond the table": Kind(_band(stop=10**9), illegal=True),
    "band dropped": Kind(_band_dropped, illegal=True),
    "row of the order twice": Kind(_order(swap=False), illegal=True),
    "order reversed": Kind(_order(swap=True), copy=True, illegal=True),
    "memory of the copy larger": Kind(_machine(_larger), copy=True, illegal=True),
    "slow memory of the copy faster": Kind(_machine(_smaller), copy=True, illegal=True),
    "links of the copy faster": Kind(_machine(_faster_links), copy=True, illegal=True),
    "links of the copy slower": Kind(_machine(_slower_links), copy=True, illegal=True),
    "servers added to the copy": Kind(_machine(_more_servers), copy=True, illegal=True),
    "fewer lookups in the copy": Kind(_fewer_lookups, copy=True, illegal=True),
    "smaller batch in the copy": Kind(_smaller_batch, copy=True, illegal=True),
    "narrow tables in the copy": Kind(_narrow, copy=True, illegal=True),
    "constraints dropped": Kind(_constraints_dropped),
    "constraints that the plan breaks": Kind(
        _constrained({"tables": {"t2": {"tier": "hbm"}, "t3": {"device": 0}}}), illegal=True
    ),
    "constraints that cannot be": Kind(
        _constrained({"tables": {"t0": {"exchange": "sums"}}}), illegal=True
    ),
    "reserve dropped": Kind(_unwished),
    "reserve of everything": Kind(_wished(reserve=1.0), illegal=True),
    "reserve below zero": Kind(_wished(reserve=-5.0), illegal=True),
    "other work raised": Kind(_wished(dense_s=0.5)),
    "other work below zero": Kind(_wished(dense_s=-1.0), illegal=True),
    "other work a word": Kind(_wished(dense_s="soon"), illegal=True),
    "all fast memory left free": Kind(_left_forged),
}
