"""`rm1`, `rm2`, `rm3`: profiles of models the size of RecShard's, as curves.

397 tables with 318, 635 and 1269 GiB of fp32 weights, batch 16384, one summed feature per
table. The three read the same data; only the tables into which values are hashed grow,
by 2 and by 4. Nothing is drawn row by row, so the largest takes no longer than a small one.

Per table, drawn from the seed:

    embedding_dim   64 (70 %), 128 (15 %), 32 (10 %), 256 (5 %)
    rows H          log-normal, sigma 2, scaled to the total. A table is capped at 9 % of
                    all bytes: the largest of rm3 then has 114 GiB and fits as a whole
                    into the 128 GiB of slow memory that baselines without splits rely on
    distinct values U / H of rm1 log-normal around 1, sigma 1; `fat`: 20 to 100, log-uniform
    popularity      p(k) ∝ (k + q)^−a over the values, q log-uniform 1 to 100, a uniform
                    .6 to 1.4; a quarter of the tables (fat: 45 %) near uniform, a .05 to .2
    pooling         log-normal around 4 ids, sigma 1.4, clipped to 1 to 200
    coverage        uniform .05 to 1

Hashing U values into H rows leaves H(1 − e^(−U/H)) rows in use. Go through the values,
hottest first: after v of them r = H(1 − e^(−v/H)) rows are taken; those rows hold all mass
C(v) of the v values and, as the colder values fall anywhere, the share r/H of the rest. So
the hottest r rows take F(r) = C(v) + (1 − C(v))·r/H of the lookups. That is the expectation
with rows in the order of their hottest value; where values are skewed it is within .03 of a
simulation, and near uniform, where rows are hot because they are crowded, up to .1 below.
The profile states F for 10⁸ samples; cold rows may have less than one lookup.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rowtier.errors import UserError
from rowtier.profile.curve import Curve, Floats, Ints, bucket_stops
from rowtier.profile.profile import FeatureStats, Profile, TableStats
from rowtier.synth.seed import generator
from rowtier.synth.zipf import ZipfMass
from rowtier.tables import Table

SAMPLES = 10**8
BATCH_SIZE = 16_384
TABLES = 397
TOTAL_BYTES = {"rm1": 318 * 2**30, "rm2": 635 * 2**30, "rm3": 1269 * 2**30}
LARGEST_SHARE = 0.09
_DIMS, _DIM_CHANCES = (64, 128, 32, 256), (0.70, 0.15, 0.10, 0.05)


@dataclass(frozen=True, eq=False)
class _Model:
    """What rm1, rm2 and rm3 have in common, one entry per table."""

    dims: Ints
    byte_shares: Floats  # of the weights of all tables
    values: Ints  # distinct raw values, U
    exponents: Floats
    shifts: Floats
    pooling: Floats
    coverage: Floats


def rm_profile(name: str, seed: int = 0, fat: bool = False) -> Profile:
    """The curve profile of rm1, rm2 or rm3; `fat` uses nearly all rows, and more evenly."""
    if name not in TOTAL_BYTES:
        raise UserError(f"there is no model {name!r}: choose one of {', '.join(TOTAL_BYTES)}")
    model = _draw_model(seed, fat)
    rows = _rows(model, TOTAL_BYTES[name])
    stats = tuple(_table_stats(model, index, int(rows[index])) for index in range(TABLES))
    return Profile(BATCH_SIZE, stats)


def used_rows(rows: int, values: int) -> int:
    """How many of `rows` are hit when `values` distinct values are hashed into them."""
    expected = -rows * np.expm1(-values / rows)
    return int(min(max(1, round(expected)), rows, values))


def hashed_curve(rows: int, mass: ZipfMass, lookups: int) -> Curve:
    """The hotness curve of `rows` rows into which the values of `mass` are hashed."""
    stops = bucket_stops(used_rows(rows, mass.n))
    taken = stops / rows
    # v(r), the values it takes to fill r rows; the last row is full when all values are in.
    values = -rows * np.log1p(-np.minimum(taken, 1 - 1e-12))
    values = np.minimum(values, mass.n)
    values[-1] = mass.n
    share = mass.share(values)
    return Curve(stops, lookups * _falling(stops, share + (1 - share) * taken))


def _falling(stops: Ints, reached: Floats) -> Floats:
    """Mass per bucket from cumulative mass, with rounding errors in its order removed.

    A bucket whose mass is lost in rounding is as hot as the one before it.
    """
    widths = np.diff(stops, prepend=0)
    heat = np.diff(reached, prepend=0.0) / widths
    heat = np.minimum.accumulate(np.where(heat > 0, heat, np.inf))
    mass = heat * widths
    return np.asarray(mass / mass.sum())


def _draw_model(seed: int, fat: bool) -> _Model:
    random = generator(seed, "rm")
    dims = random.choice(_DIMS, p=_DIM_CHANCES, size=TABLES)
    byte_shares = _capped(random.lognormal(sigma=2.0, size=TABLES) * dims, LARGEST_SHARE)
    rows = byte_shares * TOTAL_BYTES["rm1"] / (4 * dims)
    spread = random.standard_normal(TABLES)
    fat_spread = random.uniform(np.log(20), np.log(100), TABLES)
    values = np.rint(rows * np.exp(fat_spread if fat else spread))
    even = np.arange(TABLES) < round((0.45 if fat else 0.25) * TABLES)
    random.shuffle(even)
    exponents = np.where(even, random.uniform(0.05, 0.2, TABLES), random.uniform(0.6, 1.4, TABLES))
    return _Model(
        dims=dims,
        byte_shares=byte_shares,
        values=np.maximum(values, 1).astype(np.int64),
        exponents=exponents,
        shifts=np.exp(random.uniform(0, np.log(100), TABLES)),
        pooling=np.clip(4 * np.exp(1.4 * random.standard_normal(TABLES)), 1, 200),
        coverage=random.uniform(0.05, 1.0, TABLES),
    )


def _capped(weights: Floats, most: float) -> Floats:
    """Shares that add up to 1, none above `most`; what is cut off goes to the others."""
    shares = weights / weights.sum()
    capped = np.zeros(len(shares), dtype=bool)
    while (shares > most * (1 + 1e-9)).any():
        capped |= shares >= most
        free = 1 - most * capped.sum()
        shares = np.where(capped, most, weights * free / weights[~capped].sum())
    return np.asarray(shares)


def _rows(model: _Model, total_bytes: int) -> Ints:
    rows = np.rint(model.byte_shares * total_bytes / (4 * model.dims))
    return np.maximum(rows, 1).astype(np.int64)


def _table_stats(model: _Model, index: int, rows: int) -> TableStats:
    name = f"f{index:03d}"
    table = Table(
        name=f"t{index:03d}",
        num_embeddings=rows,
        embedding_dim=int(model.dims[index]),
        features=(name,),
    )
    coverage, pooling = float(model.coverage[index]), float(model.pooling[index])
    feature = FeatureStats(
        name=name, present=round(coverage * SAMPLES), lookups=round(coverage * pooling * SAMPLES)
    )
    mass = ZipfMass(
        int(model.values[index]), float(model.exponents[index]), float(model.shifts[index])
    )
    curve = hashed_curve(rows, mass, feature.lookups)
    return TableStats(table, SAMPLES, (feature,), curve)
