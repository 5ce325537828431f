"""The innermost loops of the CPU scan, written as LLVM vectors: tiles of rows x queries.

One step of a tile reads `LANES` values of each row once and meets every query of the tile with
them; each pair keeps one vector of running sums, so a pair is summed in the same order whatever
tile it is in, and its float32 logit is the same bits alone or among others. Two operations do for
a value, for weight · relu(P + a) = weight · max(P, -a) + weight · a, and the last is one number a
query. A NaN of the row goes through `max`.

LLVM's own vectorisers stay at 256 bits where 512 are twice as fast, hence the explicit vectors; it
splits them where the machine has less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _machine() -> tuple[int, int]:
    """Lanes of a vector, and queries of a tile: what the registers hold."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 4
    # Thirty-two registers of four values on AArch64, sixteen of eight with AVX2.
    return (4, 4) if features.get("neon") else (8, 2)


LANES, QUERIES = _machine()
#: Rows of a tile of one query, and of more.
LONE_ROWS, ROWS = 8, 4

_FLOAT, _INT, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_INTS = ir.VectorType(_INT, LANES)
_FOUR = ir.VectorType(_FLOAT, 4)


@dataclass(frozen=True)
class Tile:
    """What a tile does with what it reads.

    Attributes:
        rows: of the tile; a multiple of four.
        queries: of the tile.
        relu: weight · max(P, a), written; else P · a, added to what is there.
        norm: sum up the squares of each row, too, written or added likewise.
        widen: write the row as float32; nothing else reads it then.
        fetch: cache lines to ask for at each step, ahead of their use, at most.
    """

    rows: int
    queries: int
    relu: bool = True
    norm: bool = False
    widen: bool = False
    fetch: int = 0


def tile(shape: Tile, *, widened: bool = False) -> Any:
    """A function for compiled code, over addresses.

    Its arguments: an array whose type says how rows are stored (float32; uint16 for float16; int16
    for bfloat16; int8), addresses of the rows' addresses and scales, how many vectors a row has and
    at which value the last begins, the addresses of weight and first query, bytes from one query to
    the next, the address of the result, bytes from one of its lines to the next, the address of the
    norms. `widened` reads float32 whatever the array's type.
    """

    def typed(context: Any, kind: Any, *numbers: Any) -> Any:
        stored = "float32" if widened else str(kind.dtype)
        # What is float32 already is read where it lies.
        own = replace(shape, widen=False) if stored == "float32" else shape

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _Writer(builder, own, stored).write(*arguments[1:])
            return context.get_dummy_value()

        return types.void(kind, *[types.int64] * 11), generate

    # The number of arguments has to show.
    def entry(
        context: Any,
        kind: Any,
        rows: Any,
        scales: Any,
        vectors: Any,
        last: Any,
        weight: Any,
        query: Any,
        query_step: Any,
        out: Any,
        out_step: Any,
        norms: Any,
        fetch: Any,
    ) -> Any:
        return typed(context, kind)

    return intrinsic(entry)


class _Writer:
    """Writes the code of one tile."""

    def __init__(self, builder: Any, shape: Tile, stored: str) -> None:
        self._build, self._shape = builder, shape
        self._load, self._size = _LOADS[stored]
        self._scaled = stored == "int8"

    def write(
        self,
        rows: Any,
        scales: Any,
        vectors: Any,
        last: Any,
        weight: Any,
        query: Any,
        query_step: Any,
        out: Any,
        out_step: Any,
        norms: Any,
        fetch: Any,
    ) -> None:
        """Load the rows' addresses; loop over their vectors; reduce and store the sums."""
        build, shape = self._build, self._shape
        bases = [self._scalar(rows, 8 * row, _LONG) for row in range(shape.rows)]
        factors = [
            self._spread(self._scalar(scales, 4 * row, _FLOAT)) if self._scaled else None
            for row in range(shape.rows)
        ]
        queries = [self._moved(query, query_step, number) for number in range(shape.queries)]
        count = shape.rows * (shape.queries + int(shape.norm))

        before = build.block
        body = build.append_basic_block("tile")
        after = build.append_basic_block("sums")
        build.branch(body)
        build.position_at_end(body)
        step = build.phi(_LONG)
        step.add_incoming(_long(0), before)
        sums = [build.phi(_VECTOR) for _ in range(count)]
        for one in sums:
            one.add_incoming(ir.Constant(_VECTOR, [0.0] * LANES), before)
        following = build.add(step, _long(1))
        ends = build.icmp_signed(">=", following, vectors)
        value = build.select(ends, last, build.mul(step, _long(LANES)))  # at which it begins
        stored = build.mul(value, _long(self._size))
        cases = [
            self._load(build, build.add(base, stored), factor)
            for base, factor in zip(bases, factors, strict=True)
        ]
        if shape.fetch:
            # No more lines than a step reads, one behind the other.
            lines = min(shape.fetch, max(1, shape.rows * LANES * self._size // 64))
            here = build.add(fetch, build.mul(step, _long(64 * lines)))
            for line in range(lines):
                self._prefetch(build.add(here, _long(64 * line)))
        if shape.widen:
            for row, case in enumerate(cases):
                line = build.add(self._moved(out, out_step, row), build.mul(value, _long(4)))
                build.store(case, self._pointer(line, _VECTOR), align=4)
        updated = self._step(cases, build.mul(step, _long(4 * LANES)), weight, queries, sums)
        step.add_incoming(following, body)
        for one, new in zip(sums, updated, strict=True):
            one.add_incoming(new, body)
        build.cbranch(ends, after, body)

        build.position_at_end(after)
        for number in range(shape.queries):
            self._store(updated[number * shape.rows :], self._moved(out, out_step, number))
        if shape.norm:
            self._store(updated[shape.queries * shape.rows :], norms)

    def _step(
        self,
        cases: Sequence[Any],
        offset: Any,
        weight: Any,
        queries: Sequence[Any],
        sums: Sequence[Any],
    ) -> list[Any]:
        """The sums after one vector of every row."""
        build, shape = self._build, self._shape
        updated: list[Any] = []
        by_weight = None
        if shape.relu and queries:
            by_weight = self._vector(build.add(weight, offset))
        for query in queries:
            shift = self._vector(build.add(query, offset))
            for case in cases:
                old = sums[len(updated)]
                if by_weight is None:
                    updated.append(self._product(case, shift, old))
                    continue
                # As x86 has it, and not `maximum`: a case that is NaN stays.
                larger = build.select(build.fcmp_ordered(">", shift, case), shift, case)
                updated.append(self._product(larger, by_weight, old))
        if shape.norm:
            updated += [
                self._product(case, case, old)
                for case, old in zip(cases, sums[len(updated) :], strict=True)
            ]
        return updated

    def _store(self, sums: Sequence[Any], address: Any) -> None:
        """The sums of a tile's rows, four at a time."""
        build = self._build
        for row in range(0, self._shape.rows, 4):
            four = self._reduced(sums[row : row + 4])
            place = self._pointer(build.add(address, _long(4 * row)), _FOUR)
            if not self._shape.relu:
                four = build.fadd(four, build.load(place, align=4))
            build.store(four, place, align=4)

    def _reduced(self, sums: Sequence[Any]) -> Any:
        """Four vectors to their four sums, every one of them by the same tree."""
        pairs = [self._folded(sums[at], sums[at + 1], (0, 1), (2, 3)) for at in (0, 2)]
        found = self._folded(pairs[0], pairs[1], (0, LANES), (2, LANES + 2), wide=True)
        width = LANES
        while width > 4:
            width //= 2
            halves = [self._shuffled(found, found, range(at, at + width)) for at in (0, width)]
            found = self._build.fadd(*halves)
        return found

    def _folded(
        self, one: Any, two: Any, low: tuple[int, int], high: tuple[int, int], wide: bool = False
    ) -> Any:
        """Add values of each group of four to their neighbours; both vectors end up in one."""

        def mask(places: Sequence[int]) -> list[int]:
            if wide:  # two values of the one, two of the other
                four = [places[0], places[0] + 1, places[1], places[1] + 1]
            else:  # by turns
                four = [places[0], places[0] + LANES, places[1], places[1] + LANES]
            return [group + place for group in range(0, LANES, 4) for place in four]

        return self._build.fadd(
            self._shuffled(one, two, mask(low)), self._shuffled(one, two, mask(high))
        )

    def _product(self, one: Any, two: Any, added: Any) -> Any:
        """One * two + added, in one operation where the machine has it."""
        module, name = self._build.module, f"llvm.fmuladd.v{LANES}f32"
        fused = module.globals.get(name)
        if fused is None:
            fused = ir.Function(module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), name)
        return self._build.call(fused, [one, two, added])

    def _prefetch(self, address: Any) -> None:
        byte = ir.IntType(8).as_pointer()
        module, name = self._build.module, "llvm.prefetch.p0"
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(
                module, ir.FunctionType(ir.VoidType(), [byte] + [_INT] * 3), name
            )
        # For reading: to the first-level cache what is read once and soon, else to the second.
        near = 3 if self._shape.queries == 1 else 2
        hints = [ir.Constant(_INT, value) for value in (0, near, 1)]
        self._build.call(function, [self._build.inttoptr(address, byte), *hints])

    def _vector(self, address: Any) -> Any:
        return self._build.load(self._pointer(address, _VECTOR), align=4)

    def _scalar(self, address: Any, offset: int, of: Any) -> Any:
        place = self._pointer(self._build.add(address, _long(offset)), of)
        return self._build.load(place, align=4)

    def _moved(self, address: Any, step: Any, times: int) -> Any:
        return self._build.add(address, self._build.mul(step, _long(times)))

    def _pointer(self, address: Any, to: Any) -> Any:
        return self._build.inttoptr(address, to.as_pointer())

    def _spread(self, value: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        first = self._build.insert_element(nothing, value, ir.Constant(_INT, 0))
        return self._shuffled(first, first, [0] * LANES)

    def _shuffled(self, one: Any, two: Any, places: Sequence[int]) -> Any:
        mask = ir.Constant(ir.VectorType(_INT, len(places)), list(places))
        return self._build.shuffle_vector(one, two, mask)


def _long(value: int) -> Any:
    return ir.Constant(_LONG, value)


def _loaded(build: Any, address: Any, element: Any, size: int) -> Any:
    pointer = build.inttoptr(address, ir.VectorType(element, LANES).as_pointer())
    return build.load(pointer, align=size)


def _float32(build: Any, address: Any, scale: Any) -> Any:
    return _loaded(build, address, _FLOAT, 4)


def _float16(build: Any, address: Any, scale: Any) -> Any:
    return build.fpext(_loaded(build, address, ir.HalfType(), 2), _VECTOR)


def _bfloat16(build: Any, address: Any, scale: Any) -> Any:
    bits = build.zext(_loaded(build, address, ir.IntType(16), 2), _INTS)
    return build.bitcast(build.shl(bits, ir.Constant(_INTS, [16] * LANES)), _VECTOR)


def _int8(build: Any, address: Any, scale: Any) -> Any:
    whole = build.sext(_loaded(build, address, ir.IntType(8), 1), _INTS)
    return build.fmul(build.sitofp(whole, _VECTOR), scale)


_LOADS: dict[str, tuple[Callable[[Any, Any, Any], Any], int]] = {
    "float32": (_float32, 4),
    "uint16": (_float16, 2),
    "int16": (_bfloat16, 2),
    "int8": (_int8, 1),
}


def _one_value(context: Any, kind: Any, address: Any) -> Any:
    """One stored value as float64: float32, or float16 in uint16."""
    element = ir.HalfType() if str(kind.dtype) == "uint16" else _FLOAT

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[1], element.as_pointer())
        return builder.fpext(builder.load(pointer, align=2), ir.DoubleType())

    return types.float64(kind, types.int64), generate


def _either(context: Any, kind: Any, plain: Any, other: Any) -> Any:
    """`plain` where rows are float32 as they are stored, else `other`."""
    place = 1 if str(kind.dtype) == "float32" else 2

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[place]

    return types.int64(kind, types.int64, types.int64), generate


one_value: Any = intrinsic(_one_value)
either: Any = intrinsic(_either)
