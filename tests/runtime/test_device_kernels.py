"""Device kernels against the host's loops: torch's own here, triton's in the interpreter.

A seeded part of what `benchmarks/device_gate.py` draws.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rowtier.runtime.device import checks, compiling, interpreted  # noqa: E402
from rowtier.runtime.device.chained import ChainedKernels  # noqa: E402
from rowtier.runtime.kernels.cut import cut_segments  # noqa: E402
from rowtier.runtime.kernels.plain import PlainKernels  # noqa: E402
from rowtier.runtime.kernels.protocol import CHUNK, OPERATIONS  # noqa: E402
from rowtier.runtime.optim import (  # noqa: E402
    SGD,
    Adagrad,
    MomentumSGD,
    RowwiseAdagrad,
    SparseAdam,
    SparseAdamW,
)

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
NONE = torch.empty(0)


def test_there_are_at_most_sixteen_operations_and_all_have_each() -> None:
    assert len(OPERATIONS) <= 16
    for kernels in (ChainedKernels, PlainKernels):
        assert all(callable(getattr(kernels(), name)) for name in OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_plain_operations_give_the_hosts_bits(operation: str) -> None:
    for seed in range(10):
        assert checks.draw_case(operation, seed).differs(PlainKernels()) == ""


@needs_triton
def test_triton_gives_the_hosts_bits_without_races_and_compiles() -> None:
    ran = interpreted.run_interpreter(2 * len(OPERATIONS))
    assert ran.troubles == []
    assert ran.cases == 2 * len(OPERATIONS)
    assert ran.launches > ran.cases
    chosen = [v for v in ran.variants if v[0] in ("sum_runs", "update_rows", "holders")][::3]
    made = compiling.compile_all(chosen, ["sm_90"], [False])
    assert made.troubles == []
    assert made.compiled == len(chosen)


def test_a_wrong_implementation_is_noticed() -> None:
    class Wrong(PlainKernels):
        def pool(self, *args: Any) -> None:
            super().pool(*args)
            args[4][0, 0] += 1

    cases = [checks.draw_case("pool", seed) for seed in range(3)]
    assert all("pool" in case.differs(Wrong()) for case in cases)


def test_cases_have_rows_with_more_terms_than_a_chunk() -> None:
    spots = [checks.draw_case("pool_back", seed).inputs[1].numpy() for seed in range(20)]
    assert max(np.bincount(at).max(initial=0) for at in spots) > CHUNK


def test_long_sums_are_chains_of_chunks() -> None:
    values = np.random.default_rng(3).standard_normal(3 * CHUNK, dtype=np.float32)
    chunks = [np.float32(0)] * 3
    for i, value in enumerate(values):
        chunks[i // CHUNK] += value
    wanted = (chunks[0] + chunks[1]) + chunks[2]
    every = torch.arange(len(values))
    args = (torch.from_numpy(values)[:, None], every, NONE, every, torch.tensor([0, len(values)]))
    for kernels in (ChainedKernels(), PlainKernels()):
        assert kernels.sum_segments(*args, 1.0).item() == wanted


def test_cutting_segments_needs_no_count_of_chunks() -> None:
    starts = torch.tensor([0, 3, 3 + 2 * CHUNK, 3 + 2 * CHUNK, 4 + 4 * CHUNK])
    cut = cut_segments(starts, int(starts[-1]))
    assert cut.edges.tolist() == [0, 0, 1, 1, 3]
    lengths = (cut.stops - cut.starts).tolist()
    assert lengths == [CHUNK, CHUNK, 1, 0]
    assert cut.starts.tolist()[:3] == [3 + CHUNK, 3 + 3 * CHUNK, 3 + 4 * CHUNK]


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.1),
        MomentumSGD(0.1),
        Adagrad(0.1),
        RowwiseAdagrad(0.1),
        SparseAdam(0.1),
        SparseAdamW(0.1, weight_decay=0.3),
    ],
)
def test_an_optimizers_rule_is_the_same_on_the_host_and_as_specified(optimizer: Any) -> None:
    random = np.random.default_rng(5)
    weights, grads = random.random((2, 4, 3), dtype=np.float32)
    width = 1 if optimizer.kind == "rowwise_adagrad" else 3
    state = [random.random((4, width), dtype=np.float32) for _ in optimizer.state_names]
    squares, slots = random.random(4, dtype=np.float32), np.arange(4)
    rule, found = optimizer.rule(3), []
    assert rule.states == len(state)
    for kernels in (ChainedKernels(), PlainKernels()):
        rows, *copies = (torch.from_numpy(array.copy()) for array in (weights, *state))
        args = (torch.from_numpy(slots), torch.from_numpy(grads), copies)
        kernels.update(rule, rows, *args, torch.from_numpy(squares))
        found.append([rows, *copies])
    for host, specified, before in zip(*found, (weights, *state), strict=True):
        assert torch.equal(host, specified)
        assert not np.array_equal(host, before)


GUARDED = """
import torch, triton, triton.language as tl
from rowtier.runtime.device.guard import Guard

@triton.jit
def shared(out):
    tl.store(out, tl.load(out) + 1)

@triton.jit
def twice(out, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE) // 2, tl.arange(0, SIZE).to(tl.float32))

@triton.jit
def past(out, SIZE: tl.constexpr):
    tl.store(out + tl.arange(0, SIZE), tl.zeros((SIZE,), tl.float32))

@triton.jit
def counted(out):
    tl.atomic_add(out, 1.0)

@triton.jit
def apart(out):
    tl.store(out + tl.program_id(0), 1.0)

def found(kernel, programs, *args, **constants):
    guard = Guard()
    with guard.watching(), guard.launch(kernel.fn.__name__, args):
        kernel[(programs,)](*args, **constants)
    return len(guard.races), len(guard.outside)

long = torch.zeros(64)
assert found(shared, 3, torch.zeros(1)) == (1, 0)
assert found(twice, 1, torch.zeros(8), SIZE=16) == (1, 0)
assert found(past, 1, long[:40], SIZE=64) == (0, 1)
assert found(counted, 3, torch.zeros(1)) == (0, 0)
assert found(apart, 3, torch.zeros(3)) == (0, 0)
"""


LAUNCHED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from rowtier.runtime.device import checks, triton_launch

class Stub:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, _device=None): return 0

class Warm:
    def __init__(self, kernel): self.kernel = kernel
    def __getitem__(self, grid):
        def compiled(*args, **constants):
            made.append(self.kernel.warmup(*args, grid=grid, **constants))
        return compiled

made = []
driver.set_active(Stub())
for name, kernel in list(vars(triton_launch.loops).items()):
    if isinstance(kernel, triton.JITFunction) and not name.startswith("_"):
        setattr(triton_launch.loops, name, Warm(kernel))
for operation in checks.OPERATIONS:
    if operation != "distinct":  # asks how many there are, which nobody has counted
        checks.draw_case(operation, 1).run(triton_launch.TritonKernels())
assert len(made) >= 13 and all("ptx" in one.asm for one in made)
"""


@needs_triton
@pytest.mark.parametrize(
    ("script", "interprets"),
    [
        pytest.param(GUARDED, "1", id="the guard finds races and accesses outside"),
        pytest.param(LAUNCHED, "0", id="launches are what triton's JIT takes"),
    ],
)
def test_in_a_process_of_its_own(script: str, interprets: str, tmp_path: Path) -> None:
    """Races and accesses outside are found; launches are what triton's own JIT takes."""
    path = tmp_path / "script.py"
    path.write_text(script)
    environment = {**os.environ, "TRITON_INTERPRET": interprets}
    done = subprocess.run(
        [sys.executable, path], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_the_gate_looks_for_is_found() -> None:
    assert re.findall(compiling.APPROXIMATE, "div.full.f32 %f1; sqrt.approx.ftz.f32 %f2;")
    assert re.findall(compiling.APPROXIMATE, "mul.ftz.f32 %f1, %f2, %f3;")
    assert not re.findall(compiling.APPROXIMATE, "div.rn.f32 %f1; sqrt.rn.f32 %f2; add.f32 %f3;")
    assert re.findall(compiling.FUSED, "fma.rn.f32 %f1, %f2, %f3, %f4;")
    assert re.findall(compiling.FUSED, "v_pk_fma_f32 v[0:1], v[2:3]")
    assert not re.findall(compiling.FUSED, "mul.rn.f32 %f1; v_pk_add_f32 v0; fma.rn.f64 %fd1;")
    assert re.findall(compiling.PRODUCT_32, "%5 = arith.muli %a, %b : tensor<16x32xi32>")
    assert not re.findall(compiling.PRODUCT_32, "%5 = arith.muli %a, %b : tensor<16x32xi64>")
