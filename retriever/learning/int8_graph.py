"""An encoder's graph with its matrix products in 8 bits, its heads as they were.

ONNX Runtime's dynamic quantisation: weights are rounded here, once; what flows into a product is
rounded as it runs, by the largest value of the whole call. The optimised graph cannot be taken for
it, only the one as exported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retriever.encoding import EMBEDDING
from retriever.engines.runtime import import_runtime
from retriever.errors import InvalidInput, ParityError, RetrieverError

WEIGHTS = ("int8", "uint8")
_QUANTISED = ("MatMulInteger", "DynamicQuantizeMatMul")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How weights become 8 bits.

    Attributes:
        weights: int8 (symmetric) or uint8.
        per_channel: a scale for every output column instead of one for the matrix.
        reduce_range: 7 bits instead of 8. Processors without VNNI add two products in 16 bits,
            which overflows with 8: an artifact goes to other machines than the one it was gated on.
    """

    weights: str = "int8"
    per_channel: bool = True
    reduce_range: bool = True

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise InvalidInput(f"weights = {self.weights!r}: one of {', '.join(WEIGHTS)}")


def quantise_graph(source: Path, target: Path, recipe: Recipe) -> None:
    """Write `source` with the encoder's matrix products in 8 bits to `target`; heads are left out.

    Raises:
        ParityError: the graph holds no matrix product with constant weights, or the head was not
            left out.
        RetrieverError: see `require_onnx`.
    """
    onnx = require_onnx()
    import_runtime()  # before its submodule: it turns telemetry off
    from onnxruntime.quantization import QuantType, quantize_dynamic

    head = [node.name for node in _after(onnx.load(source).graph, EMBEDDING)]
    # The quantiser splits a Gemm into a product of this name and a sum before it looks at names.
    head += [f"{name}_MatMul" for name in head]
    with _quiet():
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=head,
            per_channel=recipe.per_channel,
            reduce_range=recipe.reduce_range,
            weight_type=QuantType.QInt8 if recipe.weights == "int8" else QuantType.QUInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    made = onnx.load(target).graph
    if not any(node.op_type in _QUANTISED for node in made.node):
        raise ParityError(f"{source} holds no matrix product that could be quantised")
    narrow = [node.name for node in _after(made, EMBEDDING) if node.op_type in _QUANTISED]
    if narrow:
        raise ParityError(f"{source}: the quantiser narrowed the head too: {', '.join(narrow)}")


def require_onnx() -> Any:
    """The module `onnx`.

    Raises:
        RetrieverError: it is not installed; serving needs none, quantising does.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise RetrieverError(
            "quantising an encoder needs onnx, which is not installed; install "
            "precedent-memory[train]"
        ) from error
    return onnx


def _after(graph: Any, value: str) -> list[Any]:
    """The nodes that `value` flows into, at any distance: the head, from its input on."""
    reached, found = {value}, []
    for node in graph.node:  # in topological order
        if reached & set(node.input):
            found.append(node)
            reached.update(node.output)
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """ONNX Runtime's quantiser warns of every value whose shape it does not know, to the root."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
