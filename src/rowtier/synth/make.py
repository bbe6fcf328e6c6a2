"""The way in: make a workload by name.

    make_workload("criteo", "data/", seed=1, samples=100_000, scale=0.001)
    make_workload("rm3", "profile/", fat=True)

Options are those of the workload's class in `options.py`; `options_of` lists them.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowtier.errors import UserError
from rowtier.reading import StrPath
from rowtier.synth.options import (
    CriteoOptions,
    DriftOptions,
    MetaOptions,
    Option,
    Options,
    OptionValue,
    RmOptions,
    SequenceOptions,
)
from rowtier.synth.workload import Written

if TYPE_CHECKING:
    from rowtier.synth.workload import Dataset

WORKLOADS: Mapping[str, str] = {
    "criteo": "26 features with MLPerf DLRM v2's sizes and Criteo's skew, shrunk by scale",
    "sequence": "sessions of one user with a history of items that is not pooled",
    "meta": "856 or 788 tables whose reuse per batch follows Meta's published histograms",
    "drift": "one table whose hot rows change while the data goes by",
    "rm1": "397 tables, 318 GiB, as a curve profile: fits in RecShard's fast memory",
    "rm2": "rm1 hashed into twice the rows, 635 GiB",
    "rm3": "rm1 hashed into four times the rows, 1269 GiB",
}
_OPTIONS: Mapping[str, type[Options]] = {
    "criteo": CriteoOptions,
    "sequence": SequenceOptions,
    "meta": MetaOptions,
    "drift": DriftOptions,
    "rm1": RmOptions,
    "rm2": RmOptions,
    "rm3": RmOptions,
}


def make_workload(
    name: str,
    folder: StrPath,
    *,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    **options: OptionValue,
) -> Written:
    """Write a workload into a folder: a dataset, or for rm1–rm3 a curve profile.

    The same name, seed and options give the same bytes. An option that is None is left
    at its default. `progress` is told the share that is done, from 0 to 1.
    """
    asked = read_options(name, options)
    checked_seed = _read_seed(seed)
    if isinstance(asked, RmOptions):
        return _write_profile(name, Path(folder), checked_seed, asked, progress)
    from rowtier.synth.write import write_dataset

    dataset = _dataset(asked, checked_seed)
    origin = {"workload": name, "seed": checked_seed, "options": asked.to_data()}
    return write_dataset(dataset, folder, origin, progress)


def options_of(name: str) -> Mapping[str, Option]:
    """The options a workload takes, with defaults, limits and a line of help each."""
    return {option.name: option for option in _options_class(name).described()}


def read_options(name: str, given: Mapping[str, Any]) -> Options:
    """Check options for a workload; an error says which one does not fit and what does."""
    known = options_of(name)
    kept = {key: value for key, value in given.items() if value is not None}
    for key, value in kept.items():
        if key not in known:
            raise UserError(_not_for(name, key, value))
    return _options_class(name)(**kept)


def _options_class(name: str) -> type[Options]:
    if name not in _OPTIONS:
        near = difflib.get_close_matches(str(name), WORKLOADS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"there is no workload {name!r}: {hint}choose one of {', '.join(WORKLOADS)}"
        )
    return _OPTIONS[name]


def _not_for(name: str, key: str, value: object) -> str:
    mine = list(options_of(name))
    others = [other for other in WORKLOADS if key in options_of(other)]
    near = difflib.get_close_matches(key, mine, n=1)
    if others:
        reason = f"is an option of {', '.join(others)}, not of {name}"
    elif near:
        reason = f"is not an option, did you mean {near[0]!r}?"
    else:
        reason = "is not an option of any workload"
    return f"{key}={value!r} {reason}; {name} takes seed, {', '.join(mine)}"


def _read_seed(seed: object) -> int:
    try:
        number = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0 or isinstance(seed, bool):
        raise UserError(f"seed={seed!r}: give a whole number, 0 or more")
    return number


def _dataset(options: Options, seed: int) -> Dataset:
    # Imported here because numba takes long to import and most commands do without it.
    match options:
        case CriteoOptions():
            from rowtier.synth.criteo import criteo

            return criteo(options, seed)
        case SequenceOptions():
            from rowtier.synth.sequence import sequence

            return sequence(options, seed)
        case DriftOptions():
            from rowtier.synth.drift import drift

            return drift(options, seed)
        case MetaOptions():
            from rowtier.synth.meta import meta

            return meta(options, seed)
    raise AssertionError(f"no recipe for {options}")


def _write_profile(
    name: str,
    folder: Path,
    seed: int,
    options: RmOptions,
    progress: Callable[[float], None] | None,
) -> Written:
    from rowtier.folders import claimed
    from rowtier.profile.storage import MARKER
    from rowtier.synth.rm import SAMPLES, rm_profile

    with claimed(folder, MARKER):
        profile = rm_profile(name, seed=seed, fat=options.fat)
        profile.save(folder)
    if progress is not None:
        progress(1.0)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Written(
        workload=name,
        folder=folder,
        tables=len(profile.stats),
        samples=SAMPLES,
        ids=sum(stats.lookups for stats in profile.stats),
        files=len(files),
        bytes=sum(path.stat().st_size for path in files),
    )
