"""Device kernels without a device: the same bits as the host's, no races, compiled for four GPUs.

Drawn cases of every operation run through triton's interpreter against the host's loops
(`interpreter_mismatches`), with a guard that notes which program touches which address (`races`,
`out_of_bounds`). Every variant of a kernel that was launched meanwhile is compiled for every
target, with and without aligned arguments: `compile_failures`, `spills`, `approximate_ops` (roots
and divisions in PTX that are not rounded to the nearest, numbers flushed to zero), `fused_ops`
(multiply-adds rounded once), `address_overflows` (products of 32 bits in TTIR). `plain_mismatches`
are of torch's own operations against the host's, `pretend_mismatches` of the same on a pretend
accelerator, which refuses tensors of the host. None of it has run on a GPU, and nothing is timed.
"""

from __future__ import annotations

from typing import Any

from harness.form import Measured, run

NONE = (
    "compile_failures", "spills", "approximate_ops", "fused_ops", "address_overflows",
    "interpreter_mismatches", "plain_mismatches", "pretend_mismatches", "races", "out_of_bounds",
)  # fmt: skip
GOALS: Any = {"interpreter_cases": (">=", 200), **dict.fromkeys(NONE, ("<=", 0))}
CASES = {
    "interpreter": 1400,
    "plain": 1400,
    "pretend": 700,
}  # 100 of every operation: all variants are seen
MOST_SHOWN = 50


def measure(quick: bool) -> Measured:
    """Draw, run and compile."""
    from rowtier.runtime.device import checks, compiling, interpreted, pretend
    from rowtier.runtime.kernels.plain import PlainKernels
    from rowtier.runtime.kernels.protocol import OPERATIONS

    share = 5 if quick else 1
    ran = interpreted.run_interpreter(CASES["interpreter"] // share)
    cases = list(checks.draw_cases(CASES["plain"] // share, seed=1))
    plain = [said for case in cases if (said := case.differs(PlainKernels()))]
    pretended = pretend.run_pretend(CASES["pretend"] // share, seed=1)
    made = compiling.compile_all(ran.variants)
    figures: dict[str, float] = {
        "operations": len(OPERATIONS),
        "kernels": len(made.kernels),
        "variants": len(ran.variants),
        "targets": len(made.targets),
        "compiled": made.compiled,
        "compile_failures": len(made.failures),
        "spills": len(made.spills),
        "approximate_ops": len(made.approximate),
        "fused_ops": len(made.fused),
        "address_overflows": len(made.overflows),
        "interpreter_cases": ran.cases,
        "interpreter_mismatches": len(ran.mismatches),
        "launches_guarded": ran.launches,
        "races": len(ran.races),
        "out_of_bounds": len(ran.outside),
        "plain_cases": len(cases),
        "plain_mismatches": len(plain),
        "pretend_cases": pretended.cases,
        "pretend_mismatches": len(pretended.mismatches),
    }
    troubles = [*ran.troubles, *plain, *pretended.mismatches, *made.troubles]
    return Measured([{"trouble": said} for said in troubles[:MOST_SHOWN]], figures)


if __name__ == "__main__":
    run("device_gate", measure, goals=GOALS)
