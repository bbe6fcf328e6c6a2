"""Each dataset shows what it was made to show."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowtier.synth.criteo import CARDINALITIES, IDS_PER_SAMPLE, criteo
from rowtier.synth.drift import drift
from rowtier.synth.make import make_workload
from rowtier.synth.meta import PUBLISHED, bin_of, expected_bins, fit_rates, meta
from rowtier.synth.options import CriteoOptions, DriftOptions, MetaOptions, SequenceOptions
from rowtier.synth.sequence import sequence


def counts_of(dataset, name, start=0, stop=None):
    column = next(column for column in dataset.columns if column.name == name)
    table = next(table for table in dataset.tables if name in table.features)
    ids = column.draw(start, dataset.samples if stop is None else stop)[1]
    return np.bincount(ids, minlength=table.num_embeddings)


def hottest(counts, k):
    return set(np.argsort(-counts, kind="stable")[:k].tolist())


def test_criteo_at_full_scale_has_mlperfs_sizes():
    dataset = criteo(CriteoOptions(scale=1), seed=0)
    assert [table.num_embeddings for table in dataset.tables] == list(CARDINALITIES)
    assert [column.lengths.mean for column in dataset.columns] == list(IDS_PER_SAMPLE)
    assert sum(IDS_PER_SAMPLE) == 214
    assert dataset.tables.batch_size == 4096
    table = dataset.tables["C20"]
    assert (table.embedding_dim, table.dtype, table.pooling) == (128, "fp32", "sum")
    assert table.optimizer == "rowwise_adagrad"


def test_criteo_shrinks_rows_and_ids_but_keeps_ten_rows():
    dataset = criteo(CriteoOptions(scale=0.01), seed=0)
    rows = [table.num_embeddings for table in dataset.tables]
    assert rows[:10] == [400_000, 391, 173, 75, 203, 3, 72, 16, 10, 400_000]
    assert {column.lengths.mean for column in dataset.columns} == {1}


def test_criteo_has_lists_exactly_where_samples_hold_several_ids(tmp_path):
    make_workload("criteo", tmp_path / "d", samples=50, scale=0.1)
    schema = pq.read_schema(tmp_path / "d" / "data" / "part-00000.parquet")
    listed = {field.name for field in schema if field.type == pa.list_(pa.int64())}
    assert listed == {"C21", "C22"}
    data = pq.read_table(tmp_path / "d" / "data")
    assert {len(bag) for bag in data["C21"].to_pylist()} == {10}


@pytest.mark.parametrize(("name", "exponent"), [("C20", 0.90), ("C21", 1.12), ("C23", 1.05)])
def test_criteo_features_have_their_own_skew(name, exponent):
    dataset = criteo(CriteoOptions(samples=400_000, scale=0.001), seed=0)
    counts = np.sort(counts_of(dataset, name))[::-1]
    law = np.arange(1.0, len(counts) + 1) ** -exponent
    for k in (10, 100):
        assert counts[:k].sum() / counts.sum() == pytest.approx(law[:k].sum() / law.sum(), rel=0.03)


def test_criteo_zipf_overrides_every_feature():
    dataset = criteo(CriteoOptions(zipf=0.3), seed=0)
    assert {column.positions.exponent for column in dataset.columns} == {0.3}


def test_hashed_criteo_leaves_one_row_in_e_untouched_and_plain_criteo_none():
    shares = {}
    for hashed in (False, True):
        options = CriteoOptions(samples=200_000, scale=0.0002, zipf=0, hashed=hashed)
        shares[hashed] = (counts_of(criteo(options, seed=1), "C1") == 0).mean()
    assert shares[False] == 0
    assert shares[True] == pytest.approx(1 / np.e, abs=0.02)


def test_sequence_tables_and_lengths():
    dataset = sequence(SequenceOptions(samples=50_000), seed=0)
    item, user = dataset.tables
    assert (item.name, item.pooling, item.features) == ("item", "none", ("history",))
    assert (user.name, user.pooling, user.features) == ("user", "sum", ("user",))
    assert item.num_embeddings == 1_000_000
    lengths = np.diff(dataset.columns[0].draw(0, 50_000)[0])
    assert lengths.mean() == pytest.approx(50, rel=0.02)
    assert (lengths.min(), lengths.max()) == (1, 200) or lengths.min() > 1
    assert lengths.max() == 200
    assert not dataset.columns[1].is_list


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7])
def test_hot_rows_at_both_ends_of_the_data_overlap_by_one_minus_rate(rate):
    samples = 10**9  # drawn only at both ends, so that nothing moves inside a window
    dataset = drift(DriftOptions(samples=samples, rows=4000, zipf=1.0, rate=rate), seed=0)
    k, window = 400, 2_000_000
    early = counts_of(dataset, "item", 0, window)
    late = counts_of(dataset, "item", samples - window, samples)
    again = counts_of(dataset, "item", window, 2 * window)
    noise = 1 - len(hottest(early, k) & hottest(again, k)) / k
    overlap = len(hottest(early, k) & hottest(late, k)) / k
    assert noise < 0.05
    assert overlap == pytest.approx(1 - rate, abs=0.06)


def test_drift_is_even_over_time():
    samples = 10**9
    dataset = drift(DriftOptions(samples=samples, rows=10_000, zipf=0.0, rate=0.8), seed=0)
    placing = dataset.columns[0].placing
    one_each = np.array([0, 5000])

    def owners(sample):
        ranks = np.arange(5000)
        placing.apply(ranks, sample, one_each)
        return ranks

    start = owners(0)
    moved = [(owners(int(samples * t)) != start).mean() for t in (0.25, 0.5, 0.75, 1.0)]
    assert moved == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=0.03)


def test_drift_keeps_every_row_owned_once_at_any_time():
    dataset = drift(DriftOptions(samples=1000, rows=777, rate=1.0), seed=0)
    for sample in (0, 300, 999):
        rows = np.arange(777)
        dataset.columns[0].placing.apply(rows, sample, np.array([0, 777]))
        assert len(np.unique(rows)) == 777


@pytest.mark.parametrize("year", PUBLISHED)
def test_metas_published_histograms_are_complete(year):
    published = PUBLISHED[year]
    assert len(published.row_share) == len(published.access_share) == 17
    assert sum(published.row_share) == pytest.approx(1, abs=0.002)
    assert sum(published.access_share) == pytest.approx(1, abs=0.002)


def test_bins_are_those_of_the_published_histograms():
    counts = np.array([1, 2, 3, 4, 5, 8, 9, 16384, 16385, 32768, 32769, 10**6])
    assert bin_of(counts).tolist() == [0, 1, 2, 2, 3, 3, 4, 14, 15, 15, 16, 16]


def test_expected_bins_are_those_of_poisson_counts():
    rates = np.array([0.5, 7.0, 300.0])
    touched, accessed = expected_bins(rates)
    assert touched.sum(axis=0) == pytest.approx(1 - np.exp(-rates))
    assert accessed.sum(axis=0) == pytest.approx(rates)
    draws = np.random.default_rng(0).poisson(7.0, 200_000)
    seen = np.bincount(bin_of(draws[draws > 0]), minlength=17) / len(draws)
    assert seen == pytest.approx(touched[:, 1], abs=0.005)


@pytest.mark.parametrize("year", PUBLISHED)
def test_fitted_rates_expect_the_published_histograms(year):
    published = PUBLISHED[year]
    mixture = fit_rates(published)
    touched, accessed = expected_bins(mixture.rates)
    mean = published.accesses / published.touched_rows
    assert touched @ mixture.rows == pytest.approx(published.row_share, abs=0.002)
    assert accessed @ mixture.rows / mean == pytest.approx(published.access_share, abs=0.002)


# The tolerances that meta.py states: few tables at full size, and the default size.
@pytest.mark.parametrize("year", PUBLISHED)
@pytest.mark.parametrize(
    ("tables", "scale", "row_error", "access_error"),
    [(4, 1.0, 0.005, 0.015), (None, 0.001, 0.01, 0.03)],
)
def test_a_batch_has_the_published_reuse(year, tables, scale, row_error, access_error):
    published = PUBLISHED[year]
    dataset = meta(MetaOptions(year=year, tables=tables, scale=scale), seed=0)
    rows, accesses = np.zeros(17), np.zeros(17)
    for column in dataset.columns:
        counts = np.bincount(column.draw(0, published.batch_size)[1])
        counts = counts[counts > 0]
        rows += np.bincount(bin_of(counts), minlength=17)
        accesses += np.bincount(bin_of(counts), counts, minlength=17)
    assert rows / rows.sum() == pytest.approx(published.row_share, abs=row_error)
    assert accesses / accesses.sum() == pytest.approx(published.access_share, abs=access_error)
    kept = scale * len(dataset.columns) / published.tables
    assert accesses.sum() == pytest.approx(kept * published.accesses, rel=0.03)
    assert rows.sum() == pytest.approx(kept * published.touched_rows, rel=0.03)


def test_meta_has_the_published_number_of_tables_of_very_different_size():
    for year, count in ((2021, 856), (2022, 788)):
        dataset = meta(MetaOptions(year=year), seed=0)
        sizes = np.array([table.num_embeddings for table in dataset.tables])
        assert len(sizes) == count
        assert dataset.samples == 2 * dataset.tables.batch_size == 2 * PUBLISHED[year].batch_size
        assert sizes.min() >= 1
        assert sizes.max() > 50 * np.median(sizes)


def test_meta_with_less_than_a_row_per_table_has_one_row_each():
    dataset = meta(MetaOptions(tables=7, scale=1e-9), seed=0)
    assert [table.num_embeddings for table in dataset.tables] == [1] * 7
