"""`meta`: many tables whose reuse inside a batch follows Meta's published statistics.

Meta published real embedding accesses (github.com/facebookresearch/dlrm_datasets, MIT
license): which rows one batch touches, and how often. What is used here is only the
histogram of accesses per touched row and batch, once as a share of the rows and once as a
share of the accesses.

A row is modelled as being looked up at its own Poisson rate per batch. The mixture of
rates is found so that the histogram expected of it matches both published ones
(`fit_rates`). Rates run from 1/8, below which a row is too rarely seen in one batch for
the histogram to tell, to one access per sample.

`scale` keeps that share of every table's rows together with their accesses, as if the
other rows had been deleted from the data: batch size and every row's rate stay as
published, bags get shorter and may be empty. So reuse in a batch keeps its histogram. Of
each bin, a generated batch has the published share within .005 (of the rows) and .015 (of
the accesses) at full size, .01 and .03 at the default scale, where the hottest bins stand
for one row or none.

Not published, and assumed: rows per table are log-normal with sigma 2, any row may belong
to any table, and a bag's length is its mean rounded up or down at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rowtier.errors import UserError
from rowtier.synth.columns import Column, Rounded, Scattered, Steps
from rowtier.synth.kernels import Floats, Ints
from rowtier.synth.options import MetaOptions
from rowtier.synth.seed import generator, key_of
from rowtier.synth.workload import Dataset
from rowtier.tables import Table, Tables

BIN_STOPS = 2 ** np.arange(16)  # (0,1], (1,2], (2,4], … (16384,32768], above
ROWS_SIGMA = 2.0
_LEAST_RATE = 1 / 8
_RATES_PER_OCTAVE = 4
_FIT_STEPS = 3000
_MOST_ROWS = 10**9 - 1  # numpy deals no more


@dataclass(frozen=True)
class Published:
    """One year of the published statistics."""

    tables: int
    batch_size: int
    touched_rows: float  # by one batch, all tables together
    accesses: float  # in one batch, all tables together
    row_share: tuple[float, ...]  # per bin of accesses per row and batch
    access_share: tuple[float, ...]


PUBLISHED = {
    2021: Published(
        tables=856,
        batch_size=65_536,
        touched_rows=61.65e6,
        accesses=468e6,
        row_share=(.423, .165, .167, .121, .073, .031, .011, .004, .002, .001, .001,
                   0, 0, 0, 0, 0, 0),
        access_share=(.056, .043, .075, .099, .112, .091, .064, .052, .049, .050, .054,
                      .058, .061, .052, .038, .026, .020),
    ),
    2022: Published(
        tables=788,
        batch_size=131_072,
        touched_rows=110.3e6,
        accesses=1.405e9,
        row_share=(.342, .144, .149, .138, .112, .068, .029, .010, .004, .002, .001, .001,
                   0, 0, 0, 0, 0),
        access_share=(.027, .023, .040, .068, .105, .120, .099, .070, .059, .054, .040,
                      .072, .064, .047, .021, .017, .075),
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Mixture:
    """How many rows are looked up at which rate."""

    rates: Floats  # accesses per batch, rising
    rows: Floats  # rows of that rate, per row that a batch touches


def meta(options: MetaOptions, seed: int) -> Dataset:
    """The recipe of the dataset."""
    published = PUBLISHED[options.year]
    count = published.tables if options.tables is None else options.tables
    mixture = fit_rates(published)
    kept = options.scale * count / published.tables
    total = max(count, round(kept * published.touched_rows * float(mixture.rows.sum())))
    if total > _MOST_ROWS:
        raise UserError(
            f"tables={count} at scale={options.scale:g} have {total:,} rows together, and "
            f"{_MOST_ROWS:,} can be dealt out: lower scale or tables"
        )
    random = generator(seed, "meta", "tables")
    sizes = _table_sizes(random, count, total)
    widths = _rows_per_rate(mixture, total)
    tables, columns = [], []
    for index, mine in enumerate(_deal(random, widths, sizes)):
        table, column = _table(index, mine, mixture.rates, options, seed)
        tables.append(table)
        columns.append(column)
    facts = {
        "source": "reuse histograms of github.com/facebookresearch/dlrm_datasets (MIT)",
        "batch_size": published.batch_size,
        "rows": total,
        "rows_sigma": ROWS_SIGMA,
        "expected_ids_per_batch": float(mixture.rates @ widths),
    }
    return Dataset(
        tables=Tables(batch_size=published.batch_size, tables=tuple(tables)),
        samples=options.batches * published.batch_size,
        columns=tuple(columns),
        facts=facts,
    )


def fit_rates(published: Published) -> Mixture:
    """The mixture of rates whose expected histograms match the published ones.

    Both histograms are linear in the mixture, so it is found by multiplicative updates
    that keep it positive (expectation–maximisation, also known as Richardson–Lucy).
    """
    octaves = np.log2(published.batch_size / _LEAST_RATE)
    rates = np.geomspace(_LEAST_RATE, published.batch_size, round(octaves * _RATES_PER_OCTAVE) + 1)
    touched, accessed = expected_bins(rates)
    mean = published.accesses / published.touched_rows
    expected = np.concatenate((touched, accessed / mean))
    wanted = np.array(published.row_share + published.access_share)
    rows = 1.0 / rates
    for _ in range(_FIT_STEPS):
        rows *= expected.T @ (wanted / (expected @ rows)) / expected.sum(axis=0)
    return Mixture(rates, rows)


def expected_bins(rates: Floats) -> tuple[Floats, Floats]:
    """Per bin and rate: the chance of a row to fall into it, and its accesses there."""
    touched = np.zeros((len(BIN_STOPS) + 1, len(rates)))
    accessed = np.zeros_like(touched)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, 2 * rates[-1] + 99)))))
    for index, rate in enumerate(rates):
        # Farther than ten deviations from the mean a Poisson count does not happen.
        reach = 10 * np.sqrt(rate) + 40
        counts = np.arange(max(1, int(rate - reach)), int(rate + reach) + 1)
        chance = np.exp(counts * np.log(rate) - rate - log_factorial[counts])
        bins = bin_of(counts)
        touched[:, index] = np.bincount(bins, chance, len(touched))
        accessed[:, index] = np.bincount(bins, chance * counts, len(touched))
    return touched, accessed


def bin_of(counts: Ints) -> Ints:
    """Which bin of the published histograms a row with so many accesses falls into."""
    return np.searchsorted(BIN_STOPS, counts, side="left")


def _table_sizes(random: np.random.Generator, count: int, total: int) -> Ints:
    """Log-normal sizes of at least one row that add up to `total`."""
    weights = random.lognormal(sigma=ROWS_SIGMA, size=count)
    ends = np.rint(np.cumsum(weights) / weights.sum() * (total - count)).astype(np.int64)
    return np.asarray(1 + np.diff(ends, prepend=0))


def _rows_per_rate(mixture: Mixture, total: int) -> Ints:
    """Whole rows per rate. Rounded cumulatively from the hottest rate down, so that rates
    with less than one row each still get the rows that they have together."""
    hotter = np.cumsum(mixture.rows[::-1]) / mixture.rows.sum() * total
    rising: Ints = np.diff(np.rint(hotter).astype(np.int64), prepend=0)[::-1]
    return rising


def _deal(random: np.random.Generator, widths: Ints, sizes: Ints) -> Iterator[Ints]:
    """Deal all rows to the tables like shuffled cards: rows per rate, table by table."""
    left = widths.copy()
    for size in sizes:
        hand = random.multivariate_hypergeometric(left, int(size), method="marginals")
        left -= hand
        yield hand


def _table(
    index: int, widths: Ints, rates: Floats, options: MetaOptions, seed: int
) -> tuple[Table, Column]:
    name, feature, rows = f"t{index:03d}", f"f{index:03d}", int(widths.sum())
    table = Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=options.embedding_dim,
        features=(feature,),
    )
    ids_per_sample = float(rates @ widths) / PUBLISHED[options.year].batch_size
    column = Column(
        feature,
        Rounded(ids_per_sample, key_of(seed, "meta", index, "length")),
        Steps.from_rates(rates, widths, key_of(seed, "meta", index, "ranks")),
        Scattered(rows, key_of(seed, "meta", index, "rows")),
    )
    return table, column
