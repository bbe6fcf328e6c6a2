"""`rowtier validate`: read a file or folder, check everything in it, say what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowtier.cli import show

if TYPE_CHECKING:
    from rowtier.files import Noun
    from rowtier.plan.plan import Plan
    from rowtier.profile.profile import Profile


def command(
    entry: Annotated[
        Path,
        typer.Argument(
            help="A cluster or tables file, a profile, a plan, a checkpoint, an export or a delta."
        ),
    ],
    profile: Annotated[
        Path | None, typer.Option(help="For a plan: it must have been made for this profile.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="For a plan: it must have been made for this cluster.")
    ] = None,
    json: show.JsonOption = False,
) -> None:
    """Check a file or folder completely; every mistake is listed (exit code 2).

    Of a checkpoint, an export or a delta every byte is read and compared with its checksum.
    """
    facts = _stored(entry)
    if facts is None or profile is not None or cluster is not None:
        from rowtier.kinds import load

        found = load(entry)
        if profile is not None or cluster is not None:
            _check_made_for(found, profile, cluster)
        facts = describe(found)
    if json:
        show.as_json({"entry": str(entry), "valid": True, **facts})
    else:
        listed = ", ".join(f"{key} {value}" for key, value in facts.items() if key != "kind")
        show.line(f"{entry}: valid {facts['kind']} ({listed})")


def _stored(entry: Path) -> dict[str, Any] | None:
    """Facts about a checkpoint or an export in which no bit changed; None: it is neither."""
    from rowtier.runtime.checkpoint import exported, read_export, saves
    from rowtier.runtime.deltas import delta

    if entry.is_dir() and delta.is_delta(entry):
        return delta.check_delta(entry)
    if entry.is_file() and entry.suffix == exported.SUFFIX:
        return exported.check_export(entry)
    if read_export.is_export_folder(entry):
        return read_export.check_folder(entry)
    if entry.is_dir() and saves.is_checkpoint(entry):
        return saves.check(entry)
    return None


def describe(found: Plan | Profile | Noun) -> dict[str, Any]:
    """A few facts that show what was read."""
    from rowtier.cluster import Cluster
    from rowtier.plan.plan import Plan
    from rowtier.profile.profile import Profile
    from rowtier.tables import Tables

    facts: dict[str, Any] = {"kind": type(found).__name__.lower()}
    if isinstance(found, Cluster):
        facts |= {"name": found.name, "devices": found.num_devices}
    elif isinstance(found, Tables):
        facts |= {"tables": len(found), "batch size": found.batch_size}
    elif isinstance(found, Profile):
        facts |= {"form": found.form, "tables": len(found.stats)}
    elif isinstance(found, Plan):
        facts |= {"method": found.method, "tables": len(found.bands)}
    return facts | {"fingerprint": found.fingerprint}


def _check_made_for(found: object, profile: Path | None, cluster: str | None) -> None:
    from rowtier.cluster import Cluster
    from rowtier.errors import UserError
    from rowtier.plan.plan import Plan
    from rowtier.profile.profile import Profile

    if not isinstance(found, Plan):
        raise UserError("--profile and --cluster go with a plan folder; leave them out here")
    found.check_made_for(
        profile=None if profile is None else Profile.load(profile),
        cluster=None if cluster is None else Cluster.open(cluster),
    )
