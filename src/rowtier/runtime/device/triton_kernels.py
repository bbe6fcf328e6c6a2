"""The device's inner loops, in Triton. Import this only where triton is wanted.

One program owns every line that it writes: no sum of floats is made by several, and none by
atomics. Those that are here act on integers, where order does not show. All products that
become addresses are of 64 bits. Launch without fused multiply-add (`triton_launch.py`).
"""

# No postponed annotations here: triton's interpreter looks for `tl.constexpr` itself.
import triton
import triton.language as tl


@triton.jit
def _lines(axis: tl.constexpr, SIZE: tl.constexpr):
    """The lines (or columns) of this program."""
    return tl.program_id(axis).to(tl.int64) * SIZE + tl.arange(0, SIZE)


@triton.jit
def _span(bounds, stride, count, steps, x, live):
    """How many of the rising bounds are at most x: a bisection of so many steps."""
    low = tl.zeros_like(x)
    high = low + count
    for _ in range(0, steps):
        middle = (low + high) >> 1
        open_ = live & (low < high)
        bound = tl.load(bounds + middle * stride, mask=open_, other=0)
        up = open_ & (bound <= x)
        low = tl.where(up, middle + 1, low)
        high = tl.where(open_ & (bound > x), middle, high)
    return low


@triton.jit
def _ones(word):
    """How many bits are set, of 32."""
    x = word.to(tl.uint32)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    x = x + (x >> 8)
    x = x + (x >> 16)
    return (x & 63).to(tl.int32)


@triton.jit
def _bits_below(bit):
    """A word with the bits below one set."""
    return ((tl.zeros_like(bit) + 1) << bit) - 1


@triton.jit
def _widened(value, BF16: tl.constexpr):
    """A number of a table in fp32; bf16 comes as its bits."""
    if BF16:
        return (value.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return value.to(tl.float32)


@triton.jit
def _rounded(value, dtype: tl.constexpr, BF16: tl.constexpr):
    """fp32 as a number of a table, to the nearest, ties to even."""
    if BF16:
        bits = value.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(value == value, nearest, 0x7FC0).to(tl.int16)
    return value.to(dtype)


@triton.jit
def remap(ids, ends, places, tables, found, missing, n, parts, steps, SIZE: tl.constexpr):
    """Addresses of ids by their part's table; a flag for parts with ids outside of it."""
    i = _lines(0, SIZE)
    here = i < n
    part = _span(ends, 1, parts, steps, i, here)
    row = tl.load(ids + i, mask=here, other=0)
    start = tl.load(places + 2 * part, mask=here, other=0)
    rows = tl.load(places + 2 * part + 1, mask=here, other=0)
    inside = here & (row >= 0) & (row < rows)
    tl.store(found + i, tl.load(tables + start + row, mask=inside, other=-1), mask=here)
    tl.atomic_or(missing + part, tl.full((SIZE,), 1, tl.int32), mask=here & (inside == 0))


@triton.jit
def mark_bits(address, words, n, SIZE: tl.constexpr):
    """Set the bit of every address."""
    i = _lines(0, SIZE)
    here = i < n
    entry = tl.load(address + i, mask=here, other=0).to(tl.int64)
    bit = (entry & 31).to(tl.int32)
    tl.atomic_or(words + (entry >> 5), (tl.zeros_like(bit) + 1) << bit, mask=here)


@triton.jit
def count_bits(words, counts, n, SIZE: tl.constexpr):
    """How many bits each word has."""
    i = _lines(0, SIZE)
    here = i < n
    tl.store(counts + i, _ones(tl.load(words + i, mask=here, other=0)).to(tl.int64), mask=here)


@triton.jit
def list_bits(words, before, found, n, SIZE: tl.constexpr):
    """The addresses whose bits are set, rising; so many stand before each word's."""
    i = _lines(0, SIZE)
    here = i < n
    word = tl.load(words + i, mask=here, other=0)
    place = tl.load(before + i, mask=here, other=0)
    for bit in range(0, 32):
        is_set = here & (((word >> bit) & 1) == 1)
        tl.store(found + place, (i * 32 + bit).to(found.dtype.element_ty), mask=is_set)
        place += is_set.to(tl.int64)


@triton.jit
def place_bits(address, words, before, inverse, n, SIZE: tl.constexpr):
    """Which of the distinct addresses each is: the bits below its own, counted."""
    i = _lines(0, SIZE)
    here = i < n
    entry = tl.load(address + i, mask=here, other=0).to(tl.int64)
    word = tl.load(words + (entry >> 5), mask=here, other=0)
    below = word & _bits_below((entry & 31).to(tl.int32))
    place = tl.load(before + (entry >> 5), mask=here, other=0) + _ones(below)
    tl.store(inverse + i, place, mask=here)


@triton.jit
def holders(address, bands, owners, found, n, count, steps, width, ranks, SIZE: tl.constexpr):
    """The rank that holds each address, by its band's line; `width` columns of owners."""
    i = _lines(0, SIZE)
    here = i < n
    entry = tl.load(address + i, mask=here, other=0).to(tl.int64)
    band = _span(bands, 5, count, steps, entry, here) - 1
    inside = here & (band >= 0)
    line = bands + band * 5
    start = tl.load(line, mask=inside, other=0)
    inside = inside & (entry < tl.load(line + 1, mask=inside, other=0))
    offset = tl.load(line + 2, mask=inside, other=0)
    block = tl.load(line + 3, mask=inside, other=0)
    members = tl.load(line + 4, mask=inside, other=1)
    place = tl.where(inside, entry - start, 0)
    spread = tl.where(members > 1, (place + offset) % tl.maximum(members, 1), 0)
    position = tl.where(block > 0, place // tl.maximum(block, 1), spread)
    rank = tl.load(owners + band * width + position, mask=inside, other=0)
    tl.store(found + i, tl.where(inside, rank, ranks).to(tl.int32), mask=here)


@triton.jit
def group_counts(keys, counts, n, size, blocks, SIZE: tl.constexpr):
    """Keys × blocks: how often each key is in this program's block of entries."""
    i = _lines(0, SIZE)
    here = i < n
    key = tl.load(keys + i, mask=here, other=-1)
    to = counts + tl.program_id(0)
    for k in range(0, size):
        tl.store(to, tl.sum((here & (key == k)).to(tl.int64), axis=0))
        to += blocks


@triton.jit
def group_places(keys, before, order, n, size, blocks, SIZE: tl.constexpr):
    """Write this block's entries where their key's stand, in the order they came."""
    i = _lines(0, SIZE)
    here = i < n
    key = tl.load(keys + i, mask=here, other=-1)
    come = before + tl.program_id(0)
    for k in range(0, size):
        mine = here & (key == k)
        within = tl.cumsum(mine.to(tl.int64), axis=0) - 1
        tl.store(order + tl.load(come) + within, i, mask=mine)
        come += blocks


@triton.jit
def count_bands(
    entries, edges, starts, found, n, ranks, rank_steps, bands, band_steps, SIZE: tl.constexpr
):
    """Add 1 for every entry to its band and rank; integers, so order does not show."""
    i = _lines(0, SIZE)
    here = i < n
    entry = tl.load(entries + i, mask=here, other=0).to(tl.int64)
    rank = _span(edges, 1, ranks, rank_steps, i, here)
    band = _span(starts, 1, bands, band_steps, entry, here) - 1
    tl.atomic_add(found + band * ranks + rank, tl.full((SIZE,), 1, tl.int64), mask=here)


@triton.jit
def move_rows(
    source, come, target, at, n, width, source_stride, target_stride,
    AT_SPOTS: tl.constexpr, BF16: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copy rows, in fp32, to spots, or to their own lines; negative rows are left out."""
    i, c = _lines(0, ROWS), _lines(1, COLUMNS)
    here = i < n
    row = tl.load(come + i, mask=here, other=-1)
    to = i
    if AT_SPOTS:
        to = tl.load(at + i, mask=here, other=0)
    live = (here & (row >= 0))[:, None] & (c < width)[None, :]
    value = tl.load(source + row[:, None] * source_stride + c[None, :], mask=live, other=0)
    tl.store(target + to[:, None] * target_stride + c[None, :], _widened(value, BF16), mask=live)


@triton.jit
def sum_runs(
    source, come, weights, order, starts, stops, target,
    n, width, source_stride, target_stride, scale,
    COMES: tl.constexpr, WEIGHTED: tl.constexpr, ORDERED: tl.constexpr,
    SEEDED: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the terms of every run to its line, one by one."""
    k, c = _lines(0, ROWS), _lines(1, COLUMNS)
    start = tl.load(starts + k, mask=k < n, other=0)
    stop = tl.load(stops + k, mask=k < n, other=0)
    here = (k < n) & (start < stop)  # lines without terms are not touched
    inside = here[:, None] & (c < width)[None, :]
    place = target + k[:, None] * target_stride + c[None, :]
    # −0.0 changes no sum; tl.full would make 0.0 of it.
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32) * -1.0
    if SEEDED:
        total = tl.load(place, mask=inside, other=0.0)
    for j in range(0, tl.max(stop - start, axis=0)):
        entry = start + j
        live = here & (entry < stop)
        if ORDERED:
            entry = tl.load(order + entry, mask=live, other=0)
        row = entry
        if COMES:
            row = tl.load(come + entry, mask=live, other=0)
        term = tl.load(
            source + row[:, None] * source_stride + c[None, :],
            mask=live[:, None] & (c < width)[None, :],
            other=0.0,
        )
        if WEIGHTED:
            term = term * tl.load(weights + entry, mask=live, other=0.0)[:, None]
        total = tl.where(live[:, None], total + term, total)
    if SCALED:
        total = total * scale
    tl.store(place, total, mask=inside)


@triton.jit
def squares(grads, found, n, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum of g² of every row, in fp64."""
    i = _lines(0, ROWS)
    here = i < n
    total = tl.zeros((ROWS,), dtype=tl.float64)
    for first in range(0, width, COLUMNS):
        c = first + tl.arange(0, COLUMNS)
        live = here[:, None] & (c < width)[None, :]
        g = tl.load(grads + i[:, None] * width + c[None, :], mask=live, other=0.0).to(tl.float64)
        total += tl.sum(g * g, axis=1)
    tl.store(found + i, total.to(tl.float32), mask=here)


@triton.jit
def row_rates(state, slots, squares, rates, n, rate, eps, SIZE: tl.constexpr):
    """Row-wise Adagrad's state and what it makes of the learning rate, row by row."""
    i = _lines(0, SIZE)
    here = i < n
    slot = tl.load(slots + i, mask=here, other=0)
    total = tl.load(state + slot, mask=here, other=0.0) + tl.load(squares + i, mask=here, other=0.0)
    tl.store(state + slot, total, mask=here)
    lr = tl.zeros((SIZE,), dtype=tl.float32) + rate
    tl.store(rates + i, tl.div_rn(lr, tl.sqrt_rn(total) + eps), mask=here)


@triton.jit
def update_rows(
    weights, slots, grads, first, second, rates, n, width, rate, eps, beta1, beta2, kept,
    KIND: tl.constexpr, BF16: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Change rows and their state by their gradients."""
    i, c = _lines(0, ROWS), _lines(1, COLUMNS)
    here = i < n
    live = here[:, None] & (c < width)[None, :]
    slot = tl.load(slots + i, mask=here, other=0)
    place = slot[:, None] * width + c[None, :]
    w = _widened(tl.load(weights + place, mask=live, other=0), BF16)
    g = tl.load(grads + i[:, None] * width + c[None, :], mask=live, other=0.0)
    if KIND == "sgd":
        w = w - rate * g
    if KIND == "momentum":
        s = kept * tl.load(first + place, mask=live, other=0.0) + g
        tl.store(first + place, s, mask=live)
        w = w - rate * s
    if KIND == "adagrad":
        s = tl.load(first + place, mask=live, other=0.0) + g * g
        tl.store(first + place, s, mask=live)
        w = w - rate * tl.div_rn(g, tl.sqrt_rn(s) + eps)
    if KIND == "rowwise_adagrad":
        w = w - tl.load(rates + i, mask=here, other=0.0)[:, None] * g
    if KIND == "adam":
        m = tl.load(first + place, mask=live, other=0.0)
        v = tl.load(second + place, mask=live, other=0.0)
        m = m + (1.0 - beta1) * (g - m)
        v = v + (1.0 - beta2) * (g * g - v)
        tl.store(first + place, m, mask=live)
        tl.store(second + place, v, mask=live)
        w = kept * w - rate * tl.div_rn(m, tl.sqrt_rn(v) + eps)
    tl.store(weights + place, _rounded(w, weights.dtype.element_ty, BF16), mask=live)
