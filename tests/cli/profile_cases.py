from __future__ import annotations

from pathlib import Path

from cli.run import run

from rowtier import Profile, Table, Tables


def profile(data: object, tables: Path, output: Path, *more: str) -> tuple[int, str, str]:
    return run("profile", str(data), "--tables", str(tables), "-o", str(output), *more)


def one_table(folder: Path, **changes: object) -> Path:
    base = {"name": "t", "num_embeddings": 100, "embedding_dim": 4, "features": ("f",)}
    table = Table.model_validate({**base, **changes})
    Tables(batch_size=8, tables=(table,)).save(folder / "tables.yaml")
    return folder / "tables.yaml"


def nothing_left(folder: Path, *expected: str) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(expected)


def counts(folder: Path) -> list[tuple[list[int], list[int]]]:
    found = [stats.counts for stats in Profile.load(folder).stats]
    return [(c.rows.tolist(), c.counts.tolist()) for c in found if c is not None]


def runs(pid: int) -> bool:
    """Whether a process runs; one that only nobody has waited for does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"
