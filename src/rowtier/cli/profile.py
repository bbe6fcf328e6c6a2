"""`rowtier profile`: measure how a dataset touches every row; `profile show`: look at it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rowtier.cli import show
from rowtier.cli.data_options import AfterOption, BeforeOption, TimeOption
from rowtier.cli.policy import OutOfRangeOption, checked_policy
from rowtier.units import parse_bytes, parse_share

if TYPE_CHECKING:
    from rowtier.profile.coverage import Enough
    from rowtier.profile.forecast import Amount, Share
    from rowtier.profile.look import Expected, TableLook
    from rowtier.profile.profile import Profile

MAX_TABLES = 30
DEFAULT_CUT = 0.1


CutOption = Annotated[
    float,
    typer.Option(
        parser=lambda text: parse_share(str(text)),
        metavar="SHARE",
        help="Say whether the data is enough to cut tables at this share of their rows.",
    ),
]


HorizonOption = Annotated[
    float,
    typer.Option(
        help="How far ahead forecasts look, in lengths of the data: 1, as far as it goes back."
    ),
]


class _MeasureByDefault(TyperGroup):
    """`rowtier profile DATA …` measures: the command's name may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help", "-h"}:
            args = ["measure", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_MeasureByDefault,
    help="Measure how a dataset touches every row. `rowtier profile DATA --tables … -o …` is "
    "short for `rowtier profile measure DATA …`.",
    no_args_is_help=True,
)

_Data = Annotated[
    str, typer.Argument(help="Parquet, Criteo TSV, npz or pt: a file, a folder or a glob.")
]
_Tables = Annotated[Path, typer.Option(help="The tables.yaml that the data is for.")]
_Output = Annotated[Path, typer.Option("--output", "-o", help="The profile folder to write.")]
_Sample = Annotated[
    float,
    typer.Option(parser=parse_share, metavar="SHARE", help="Read this share, such as 1%."),
]
_Seed = Annotated[int, typer.Option(help="Which samples --sample takes.")]
_FirstSample = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="For `profile merge`: the number that the first sample of DATA has in the whole "
        "that DATA is part of. Default: 0.",
    ),
]
_Vocabulary = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="For tables with `ids: vocabulary`: take the vocabularies of this profile or plan "
        "folder, instead of building them from the data.",
    ),
]
_Workers = Annotated[int, typer.Option(min=1, help="Processes that count.")]
_Memory = Annotated[
    int | None,
    typer.Option(
        parser=parse_bytes,
        metavar="SIZE",
        help="For counters; tables with more rows are counted in several passes. "
        "Default: half of this machine's memory.",
    ),
]
_Dask = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Count on this Dask scheduler's workers.")
]
_Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from what an interrupted run finished.")
]


@app.command("measure")
def measure(
    data: _Data,
    tables: _Tables,
    output: _Output,
    sample: _Sample = "100%",  # type: ignore[assignment]
    seed: _Seed = 0,
    before: BeforeOption = None,
    after: AfterOption = None,
    time: TimeOption = None,
    first_sample: _FirstSample = None,
    horizon: HorizonOption = 1.0,
    on_out_of_range: OutOfRangeOption = None,
    vocabulary: _Vocabulary = None,
    cut: CutOption = DEFAULT_CUT,
    workers: _Workers = 1,
    memory: _Memory = None,
    dask: _Dask = None,
    resume: _Resume = False,
    json: show.JsonOption = False,
) -> None:
    """Count how the data touches every row of the tables."""
    from rowtier.fields import check_horizon
    from rowtier.folders import claimed
    from rowtier.profile.finished_legs import FinishedLegs
    from rowtier.profile.make import ProfileOptions, make_profile
    from rowtier.tables import Tables

    options = ProfileOptions(
        sample=sample,
        seed=seed,
        before=before,
        after=after,
        time=time,
        first_sample=first_sample,
        horizon=check_horizon(horizon, "--horizon"),
        on_out_of_range=checked_policy(on_out_of_range),
        workers=workers,
        memory_bytes=memory,
        dask=dask,
        resume=resume,
        vocabulary=vocabulary,
    )
    described = Tables.load(tables)
    with claimed(output, "profile.json", resume=resume):
        finished = FinishedLegs(output)
        with show.progress(f"profiling {data}", quiet=json) as progress:
            profile = make_profile(data, described, options, progress=progress, finished=finished)
        profile.save(output)
        finished.clear()
    _report(profile, json, cut)
    if not json:
        show.written(output)


@app.command("show")
def show_profile(
    profile: Annotated[Path, typer.Argument(help="A profile folder.")],
    full: Annotated[bool, typer.Option("--full", help="Show every table.")] = False,
    cut: CutOption = DEFAULT_CUT,
    horizon: Annotated[
        float | None,
        typer.Option(help="How far ahead to look, in lengths of the data. Default: as profiled."),
    ] = None,
    json: show.JsonOption = False,
) -> None:
    """Show what a profile says about each table, and what to be alarmed about."""
    from rowtier.profile.forecast import looking_ahead
    from rowtier.profile.profile import Profile

    found = Profile.load(profile)
    if horizon is not None:
        found = looking_ahead(found, horizon)
    _report(found, json, cut, full)


@app.command("merge")
def merge(
    profiles: Annotated[list[Path], typer.Argument(help="Profiles of parts of the same data.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The profile folder to write.")],
    json: show.JsonOption = False,
) -> None:
    """Add up profiles of parts of the data, exactly and in any order."""
    from rowtier.errors import UserError
    from rowtier.folders import claimed
    from rowtier.profile.merge import merge_profiles
    from rowtier.profile.profile import Profile

    with claimed(output, "profile.json"):
        parts = [Profile.load(path) for path in profiles]
        if len({part.fingerprint for part in parts}) < len(parts):
            raise UserError("two of the profiles are the same; give each part of the data once")
        profile = merge_profiles(parts)
        profile.save(output)
    _report(profile, json, DEFAULT_CUT)
    if not json:
        show.written(output)


def _report(profile: Profile, json: bool, cut: float, full: bool = False) -> None:
    from rowtier.profile.look import alerts, expected_of, look_at_all

    looks = sorted(look_at_all(profile), key=lambda look: -look.lookups)
    judged = _judgements(profile, cut)
    expected = {stats.table.name: expected_of(profile, stats) for stats in profile.stats}
    if json:
        tables = [
            {
                **look.to_dict(),
                "alerts": list(alerts(look)),
                "cut": vars(judged[look.name]) if look.name in judged else None,
                "expected": expected[look.name].to_dict(),
            }
            for look in looks
        ]
        facts = {"form": profile.form, "fingerprint": profile.fingerprint}
        show.as_json({**facts, "horizon": profile.horizon, "tables": tables})
        return
    _verdict(profile)
    shown = looks if full else looks[:MAX_TABLES]
    _table(shown)
    _expected(profile, {look.name: expected[look.name] for look in shown})
    if len(shown) < len(looks):
        show.line(f"… and {len(looks) - len(shown)} more tables: --full shows them")
    said = [text for look in looks for text in alerts(look)]
    for text in said if full else said[:MAX_TABLES]:
        show.line(f"! {text}")
    doubtful = [look.name for look in looks if look.name in judged and not judged[look.name].enough]
    if judged and not doubtful:
        show.line(f"the data is enough to cut every table at {cut:.0%} of its rows")
    for name in doubtful if full else doubtful[:5]:
        show.line(f"{name}: {judged[name]}")
    if len(doubtful) > 5 and not full:
        show.line(f"… and {len(doubtful) - 5} more tables to be doubted: --full shows them")


def _verdict(profile: Profile) -> None:
    from rowtier.units import show_bytes, show_count

    stored = sum(stats.table.stored_bytes for stats in profile.stats)
    lookups = sum(stats.lookups for stats in profile.stats)
    samples = max(stats.samples for stats in profile.stats)
    show.line(
        f"{len(profile.stats)} tables ({show_bytes(stored)}), {show_count(samples)} samples, "
        f"{show_count(lookups)} lookups, {profile.form} profile {profile.fingerprint}"
    )


def _table(looks: list[TableLook]) -> None:
    from rowtier.units import show_count

    columns = [
        "table",
        "rows",
        "touched",
        "coverage",
        "pooling",
        "50 %",
        "90 %",
        "99 %",
        "served by",
    ]
    rows = [
        [
            look.name,
            show_count(look.rows),
            f"{look.touched / look.rows:.0%}",
            f"{look.coverage:.0%}",
            f"{look.pooling:.3g}",
            *(show_count(position) for position in look.served_by),
            look.spark,
        ]
        for look in looks
    ]
    show.table(columns, rows)
    show.line(
        "touched: rows that were looked up; coverage: samples that have the feature; pooling: "
        "lookups of those; 50 %, 90 %, 99 %: how many of the hottest rows serve that share of "
        "lookups to come"
    )


def _expected(profile: Profile, found: dict[str, Expected]) -> None:
    """What to expect of data to come."""
    from rowtier.units import show_count

    device = show_count(profile.batch_size)
    columns = ["table", "1 % take", "10 % take", "unseen", f"rows of {device}", "neighbours"]
    rows = []
    for name, one in found.items():
        by_rows, count = dict(one.coverage), profile[name].table.num_embeddings
        hot, tenth = (by_rows[math.ceil(share * count)] for share in (0.01, 0.1))
        near = _amount(one.in_time_order[0][1]) if one.in_time_order else "–"
        shares = [_share(share) for share in (hot, tenth, one.unseen)]
        rows.append([name, *shares, _amount(one.distinct[0][1]), near])
    show.table(columns, rows)
    ahead = f"{profile.horizon:g} × as long as" if profile.horizon != 1 else "as long as"
    ahead += " the profiled data"
    show.line(
        f"of data to come, {ahead}: lookups that the hottest 1 and 10 % of rows take, and on rows "
        f"never seen; distinct rows of a device's {device} samples, shuffled and neighbours. In "
        "brackets: what holds nine times in ten"
    )
    unknown = dict.fromkeys(one.unseen.unknown for one in found.values() if one.unseen.unknown)
    for text in unknown:
        show.line(f"! no interval: {text}")


def _share(share: Share) -> str:
    if share.low is None:
        return f"{share.share:.1%}"
    ends = (100 * end for end in share.interval)
    low, high = (f"{end:.0f}" if end > 9.5 else f"{end:.2g}" for end in ends)
    return f"{share.share:.1%} ({low}–{high})"


def _amount(amount: Amount) -> str:
    if amount.low is None or amount.high is None:
        return _rows(amount.value)
    return f"{_rows(amount.value)} ({_rows(amount.low)}–{_rows(amount.high)})"


def _rows(value: float) -> str:
    from rowtier.units import show_count

    return show_count(round(value) if value >= 10 else value)


def _judgements(profile: Profile, cut: float) -> dict[str, Enough]:
    """Whether the data is enough for a cut, in words, where rows were counted."""
    from rowtier.profile.coverage import enough

    found = {}
    for stats in profile.stats:
        if stats.counts is not None and stats.lookups:
            positions = max(1, math.ceil(cut * stats.table.num_embeddings))
            rows = stats.table.num_embeddings
            found[stats.table.name] = enough(stats.counts.counts, stats.drift, rows, positions)
    return found
