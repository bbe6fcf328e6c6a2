"""`sequence`: sessions of one user with a history of items, none of them pooled.

A session's length is log-normal with the given `spread` (sigma), rounded up and clipped
to 1..max_length; mu is set so that `mean_length` is the mean after rounding and clipping.
Items are drawn independently, Zipf with exponent `zipf`. Who starts a session is skewed
much less than what is looked at, so users are Zipf with exponent 0.6.
"""

from __future__ import annotations

from rowtier.synth.columns import Column, Fixed, Scattered, Sessions, Zipf
from rowtier.synth.options import SequenceOptions
from rowtier.synth.seed import key_of
from rowtier.synth.workload import Dataset
from rowtier.tables import Table, Tables

USER_ZIPF = 0.6


def sequence(options: SequenceOptions, seed: int) -> Dataset:
    """The recipe of the dataset."""
    dim = options.embedding_dim
    item = Table(
        name="item",
        num_embeddings=options.rows,
        embedding_dim=dim,
        pooling="none",
        features=("history",),
    )
    user = Table(name="user", num_embeddings=options.users, embedding_dim=dim, features=("user",))
    lengths = Sessions(
        options.mean_length, options.spread, options.max_length, key_of(seed, "sequence", "length")
    )
    columns = (
        Column(
            "history",
            lengths,
            Zipf(options.rows, options.zipf, key_of(seed, "sequence", "item", "ranks")),
            Scattered(options.rows, key_of(seed, "sequence", "item", "rows")),
        ),
        Column(
            "user",
            Fixed(1),
            Zipf(options.users, USER_ZIPF, key_of(seed, "sequence", "user", "ranks")),
            Scattered(options.users, key_of(seed, "sequence", "user", "rows")),
        ),
    )
    facts = {
        "length": {
            "distribution": "log-normal, rounded up, clipped to 1..max_length",
            "mu": lengths.mu,
            "sigma": options.spread,
        },
        "user_zipf": USER_ZIPF,
    }
    tables = Tables(batch_size=options.batch_size, tables=(item, user))
    return Dataset(tables, options.samples, columns, facts)
