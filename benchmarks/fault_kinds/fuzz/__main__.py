"""`python -m fault_kinds.fuzz`: many cases, and what every failure was, ready to be kept."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from fault_kinds.fuzz.processes import Drawn, run_cases


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=10_000)
    asked.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "0")))
    asked.add_argument("--processes", type=int, default=2)
    asked.add_argument("--keep", type=Path, help="write the failures to this YAML file")
    options = asked.parse_args()
    start = time.perf_counter()
    tally = run_cases(Drawn(options.seed, options.count), options.processes)
    taken = time.perf_counter() - start
    print(f"{tally.cases} cases of seed {options.seed} in {taken:.0f} s: {dict(tally.outcomes)}")
    print(f"by kind: {dict(sorted(tally.bases.items()))}")
    print(f"the longest took {tally.worst_s:.2f} s, the largest {tally.worst_mib:.0f} MiB")
    alike = Counter((o.what, o.detail) for _, _, o in tally.failures)
    first = {(o.what, o.detail): (n, c) for n, c, o in reversed(tally.failures)}
    for (what, detail), times in alike.most_common():
        number, case = first[what, detail]
        said = f"case {number}, {case.base}: {list(case.changes)}"
        print(f"\n{times} × {what}: {detail}\n  {said[:1500]}")
    if options.keep:
        kept = [
            {"base": c.base, "found": f"{o.what}: {o.detail}", "changes": list(c.changes)}
            for _, c, o in tally.failures
        ]
        options.keep.write_text(yaml.safe_dump(json.loads(json.dumps(kept)), sort_keys=False))
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
