"""The scan's loops, compiled: a tile of rows meets every query, and the best rows stay.

Functions over a range of rows of one chunk; they release the GIL and know nothing of threads, so
that `pool` can run them, and any number of scans at once. Only eligible rows are read. The compiled
code is kept beside this file, or wherever numba finds a folder that it may write to.

Arguments that many functions share:

    kind, rest   empty arrays whose types say how the hidden part of a row, and what follows it, are
                 stored; see `tiles.tile`
    spans        (S, 6) of consecutive rows: the first and the end, the address of the first row's
                 hidden part and the bytes from row to row, the same two of what follows it
    span         one of them, as a tuple
    steps        (vectors, last) of the hidden part, then of what follows it; see `plan.Part`
    places       (4, T) int64, of the tile's rows: number, address, address of what follows the
                 hidden part, address of the row as float32
    lines        (5, T) float32, of the tile's rows: scale, norm, what nobody reads, how far the
                 stored vector is from the true one, the most that the row may score
    sums         (Q', T) float32: what each pair scores, up to the query's constant
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from retriever.kernels import tiles
from retriever.kernels.compiling import compiled_by
from retriever.kernels.tiles import LONE_ROWS, QUERIES, ROWS, Tile, either, one_value, tile

_lone: Any = tile(Tile(LONE_ROWS, 1, norm=True, fetch=8))
_linear: Any = tile(Tile(LONE_ROWS, 1, relu=False, norm=True))
_widen: Any = tile(Tile(ROWS, 0, norm=True, widen=True))
_many: Any = tile(Tile(ROWS, QUERIES, fetch=1), widened=True)

#: How far ahead memory is asked for, by one query alone.
AHEAD = 1 << 14

#: What the loops are made of beside this file.
_TILES = zlib.crc32(Path(tiles.__file__).read_bytes())


@compiled_by(_TILES)
def planned(
    weight, queries, offset, bias, sign, gamma, lost, full, last, rest_full, rest_last,
    beside, factors, limits,
):  # fmt: skip
    """What `plan` promises, all of it before it is rounded to float32.

    Args: weight (D,) and queries (Q, D + R), float64; `sign` 1 or -1; for the hidden part and what
    follows it, how many columns stand in vectors before the last, and where that begins. Filled
    are, zeros as they come: `beside` (1 + Q', ...) with the weight and the queries' shifts,
    `factors` (Q', ...), `limits` (4, Q) with slope, reach, fixed (as `rescoring.bound` has them,
    which gives the reasons) and constant.
    """
    hidden, rank = len(weight), queries.shape[1] - len(weight)
    norm = 0.0
    for d in range(hidden):
        beside[0, d if d < full else d + full - last] = sign * weight[d]
        norm += weight[d] * weight[d]
    for q in range(len(queries)):
        constant, moved, linear = 0.0, 0.0, 1.0 if bias else 0.0
        for d in range(hidden):
            beside[1 + q, d if d < full else d + full - last] = -queries[q, d]
            constant += queries[q, d] * weight[d]
            moved += abs(queries[q, d] * weight[d])
        for column in range(bias + rank):
            value = 1.0
            if column >= bias:
                value = queries[q, hidden + column - bias]
                linear += value * value
            place = column if column < rest_full else column + rest_full - rest_last
            factors[q, place] = sign * value
        reach = np.sqrt(norm + linear)
        limits[0, q], limits[1, q] = gamma * reach, reach
        limits[2, q] = gamma * (2 * moved + abs(offset) + 1e-17 * reach) + lost * (1 + reach)
        limits[3, q] = sign * (constant + offset)


@compiled_by(_TILES)
def _span(spans, at):
    return spans[at, 0], spans[at, 1], spans[at, 2], spans[at, 3], spans[at, 4], spans[at, 5]


@compiled_by(_TILES)
def _gathered(mask, row, span, scales, drifts, places, lines):
    """Fill a tile with the next eligible rows: (how many, the row to go on at)."""
    first, end, base, stride, rest_base, rest_stride = span
    room = places.shape[1]
    count = 0
    while row < end and count < room:
        if mask[row]:
            places[0, count] = row
            places[1, count] = base + (row - first) * stride
            places[2, count] = rest_base + (row - first) * rest_stride
            if len(scales):
                lines[0, count] = scales[row]
            if len(drifts):
                lines[3, count] = drifts[row]
            count += 1
        row += 1
    # Tiles are whole: the last row fills what is left, and is not looked at again.
    for spare in range(count, -(-count // LONE_ROWS) * LONE_ROWS):
        for line in range(1, 3):
            places[line, spare] = places[line, count - 1]
        lines[0, spare] = lines[0, count - 1]
    return count, row


@compiled_by(_TILES)
def _score(kind, rest, count, span, steps, weight, shifts, factors, queries, places, lines, sums):
    """Every pair of a tile: fills `sums`, and the norms of `lines`."""
    vectors, last, rest_vectors, rest_last = steps
    w, a, s = np.int64(weight.ctypes.data), np.int64(shifts.ctypes.data), np.int64(sums.ctypes.data)
    rows, numbers = np.int64(places.ctypes.data), np.int64(lines.ctypes.data)
    room = places.shape[1]
    addresses, rests, wide = rows + 8 * room, rows + 16 * room, rows + 24 * room
    norms, unread = numbers + 4 * room, numbers + 8 * room
    step = 4 * shifts.shape[1]
    ahead = (count - 1) * span[3] if places[0, count - 1] - places[0, 0] == count - 1 else 0
    if queries == 1:
        for r in range(0, count, LONE_ROWS):
            _lone(
                kind, addresses + 8 * r, numbers + 4 * r, vectors, last, w, a, 0,
                s + 4 * r, 0, norms + 4 * r, places[1, r] + (AHEAD if ahead else 0),
            )  # fmt: skip
    else:
        pitch = places[3, 1] - places[3, 0]
        for r in range(0, count, ROWS):
            _widen(
                kind, addresses + 8 * r, numbers + 4 * r, vectors, last, w, a, 0,
                places[3, r], pitch, norms + 4 * r, 0,
            )  # fmt: skip
        source = either(kind, addresses, wide)
        fetch = places[1, count - 1] if ahead else places[1, 0]
        final = fetch + ahead
        for q in range(0, queries, QUERIES):
            for r in range(0, count, ROWS):
                _many(
                    kind, source + 8 * r, 0, vectors, last, w, a + step * q, step,
                    s + 4 * (q * room + r), 4 * room, 0, fetch,
                )  # fmt: skip
                if fetch < final:
                    fetch += 64 * vectors
    if rest_vectors:
        f = np.int64(factors.ctypes.data)
        for q in range(queries):
            for r in range(0, count, LONE_ROWS):
                _linear(
                    rest, rests + 8 * r, 0, rest_vectors, rest_last, 0,
                    f + 4 * factors.shape[1] * q, 0, s + 4 * (q * room + r), 0,
                    (norms if q == 0 else unread) + 4 * r, 0,
                )  # fmt: skip


@compiled_by(_TILES)
def _worse(score, row, than, other):
    """Whether a row comes after another: it scores less, or as much and has the higher number."""
    return score < than or (score == than and row > other)


@compiled_by(_TILES)
def _push(scores, rows, count, score, row):
    """Put a row into a heap whose first is its worst; the worst goes when it is full."""
    if count < len(scores):
        at = count
        while at and _worse(score, row, scores[(at - 1) // 2], rows[(at - 1) // 2]):
            scores[at], rows[at] = scores[(at - 1) // 2], rows[(at - 1) // 2]
            at = (at - 1) // 2
        scores[at], rows[at] = score, row
        return count + 1
    if not _worse(scores[0], rows[0], score, row):
        return count
    at, below = 0, 1
    while below < count:
        right = below + 1
        if right < count and _worse(scores[right], rows[right], scores[below], rows[below]):
            below = right
        if not _worse(scores[below], rows[below], score, row):
            break
        scores[at], rows[at] = scores[below], rows[below]
        at, below = below, 2 * below + 1
    scores[at], rows[at] = score, row
    return count


@compiled_by(_TILES)
def _keep(
    count, constant, slope, reach, fixed, collect, best, rows, counts, floors, places, lines, sums
):
    """Of a tile that is scored, the rows that may be among the best; see `scan`."""
    upper, norms, drift = lines[4], lines[1], lines[3]
    for r in range(count):
        norms[r] = np.sqrt(norms[r])
    for q in range(len(constant)):
        floor, c, g, e, f = floors[q], constant[q], slope[q], reach[q], fixed[q]
        near = 0
        for r in range(count):
            most = sums[q, r] + c + (g * norms[r] + e * drift[r] + f)
            upper[r] = most
            near += 0 if (most < floor and most > -np.inf) else 1
        if not near:
            continue
        for r in range(count):
            most = upper[r]
            if most < floors[q] and most > -np.inf:
                continue
            if not abs(most) < np.inf:
                most = np.float32(np.inf)
            if collect:
                best[q, counts[q]], rows[q, counts[q]] = most, places[0, r]
                counts[q] += 1
            else:
                counts[q] = _push(best[q], rows[q], counts[q], most, places[0, r])
                if counts[q] == best.shape[1]:
                    floors[q] = best[q, 0]


@compiled_by(_TILES)
def scan(
    kind, rest, mask, spans, scales, drifts, steps, weight, shifts, factors,
    constant, slope, reach, fixed, collect, best, rows, counts, floors, places, lines, sums,
):  # fmt: skip
    """Keep the rows of some spans that may be among the best: into (Q, M) `best` and `rows`.

    Ranked by the most that a row may score, its bound added; a row whose bound is no number is
    first of all. Without `collect`, the M best of all calls stay and (Q,) `floors` follow; with it,
    every row that may reach the floor is appended.
    """
    for at in range(len(spans)):
        span = _span(spans, at)
        row = span[0]
        while row < span[1]:
            count, row = _gathered(mask, row, span, scales, drifts, places, lines)
            if not count:
                break
            _score(
                kind, rest, count, span, steps, weight, shifts, factors, len(constant),
                places, lines, sums,
            )  # fmt: skip
            _keep(count, constant, slope, reach, fixed, collect, best, rows, counts, floors,
                  places, lines, sums)  # fmt: skip


@compiled_by(_TILES)
def logits(
    kind, rest, mask, spans, scales, steps, weight, shifts, factors, constant, out,
    places, lines, sums,
):  # fmt: skip
    """Every logit of some spans: into (Q, N) `out`, a column a row; `mask` is all true."""
    queries = len(constant)
    for at in range(len(spans)):
        span = _span(spans, at)
        row = span[0]
        while row < span[1]:
            start = row
            count, row = _gathered(mask, row, span, scales, scales[:0], places, lines)
            _score(
                kind, rest, count, span, steps, weight, shifts, factors, queries,
                places, lines, sums,
            )  # fmt: skip
            for q in range(queries):
                for r in range(count):
                    out[q, start + r] = sums[q, r] + constant[q]


@compiled_by(_TILES)
def exact(kind, numbers, rows, first, end, spans, weight, queries, bias, offset, out):
    """Exact logits of pairs `first` to `end`, with the sums in the order of `reference.exact`.

    (P,) `numbers` and `rows` are the pairs' queries and rows; `spans`, of all rows in order; weight
    (D,) and queries (Q, D + R) are float64.
    """
    size = kind.itemsize
    hidden, rank = len(weight), queries.shape[1] - len(weight)
    # Filled up with zeros to whole groups of eight.
    values = np.zeros(-(-max(hidden, rank) // 8) * 8)
    weights, shifts = np.zeros(-(-hidden // 8) * 8), np.zeros(-(-hidden // 8) * 8)
    factors = np.zeros(-(-rank // 8) * 8)
    weights[:hidden] = weight
    lanes = np.zeros(8)
    asked = -1
    for pair in range(first, end):
        q, row = numbers[pair], rows[pair]
        if q != asked:
            shifts[:hidden], factors[:rank] = queries[q, :hidden], queries[q, hidden:]
            asked = q
        span = np.searchsorted(spans[:, 0], row, side="right") - 1
        place = spans[span, 2] + (row - spans[span, 0]) * spans[span, 3]
        values[hidden:] = 0.0
        for d in range(hidden):
            values[d] = one_value(kind, place + d * size)
        lanes[:] = 0.0
        for d in range(0, len(weights), 8):
            for lane in range(8):
                value = values[d + lane] + shifts[d + lane]
                lanes[lane] += (0.0 if value <= 0.0 else value) * weights[d + lane]
        total = _tree(lanes)
        place += hidden * size
        if bias:
            total += one_value(kind, place)
            place += size
        if rank:
            values[rank:] = 0.0
            for d in range(rank):
                values[d] = one_value(kind, place + d * size)
            lanes[:] = 0.0
            for d in range(0, len(factors), 8):
                for lane in range(8):
                    lanes[lane] += values[d + lane] * factors[d + lane]
            total += _tree(lanes)
        out[pair] = total + offset


@compiled_by(_TILES)
def _zeros(lines, pitch):
    """(lines, pitch) float32 that begin at a cache line."""
    memory = np.zeros(lines * pitch + 16, np.float32)
    start = -np.int64(memory.ctypes.data) % 64 // 4
    return memory[start : start + lines * pitch].reshape(lines, pitch)


@compiled_by(_TILES)
def alone(
    kind, mask, spans, steps, lanes, weight, query, offset, bias, sign, gamma, lost, tile, fetch,
):  # fmt: skip
    """One query against a bank's own rows: (1, F) their most, (1, F) the rows, (F,) exact logits.

    `planned`, `scan` and `exact` in one call, for banks so small that calls would take longer than
    the rows. Where fewer than F rows are found, -1 stands for a row, and logits are not defined.
    Vectors are of `lanes` values, tiles of so many rows.
    """
    vectors, last, rest_vectors, rest_last = steps
    beside, factors = _zeros(2, vectors * lanes), _zeros(1, rest_vectors * lanes)
    limits, rounded = np.empty((4, 1)), np.empty((4, 1), np.float32)
    planned(
        weight, query, offset, bias, sign, gamma, lost, (vectors - 1) * lanes, last,
        (rest_vectors - 1) * lanes, rest_last, beside, factors, limits,
    )  # fmt: skip
    for at in range(4):
        rounded[at, 0] = limits[at, 0]
        if at < 3:
            rounded[at, 0] = np.nextafter(rounded[at, 0], np.float32(np.inf))
    best = np.full((1, fetch), -np.inf, np.float32)
    rows = np.full((1, fetch), -1, np.int64)
    floors, none = np.full(1, -np.inf, np.float32), np.zeros(0, np.float32)
    scan(
        kind, kind, mask, spans, none, none, steps, beside[:1], beside[1:], factors,
        rounded[3], rounded[0], rounded[1], rounded[2], False,
        best, rows, np.zeros(1, np.int64), floors,
        np.zeros((4, tile), np.int64), np.zeros((5, tile), np.float32),
        np.zeros((1, tile), np.float32),
    )  # fmt: skip
    logits = np.empty(fetch)
    if rows.min() >= 0:
        exact(
            kind, np.zeros(fetch, np.int64), rows[0], 0, fetch, spans, weight, query, bias, offset,
            logits,
        )  # fmt: skip
    return best, rows, logits


@compiled_by(_TILES)
def _tree(lanes):
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + (
        (lanes[1] + lanes[5]) + (lanes[3] + lanes[7])
    )
