"""The steps of the GPU check that need more packages: encoders and FAISS."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.figures import Figure
from benchmarks.gpu_steps import Bank, Place, Skipped, Wrong

TORCH_NEEDS = ("transformers", "tokenizers", "safetensors", "lightning", "torchmetrics")
ONNX_NEEDS = ("onnx", "onnxscript", "onnxruntime")
#: Of ONNX on CUDA against ONNX on the CPU, a value of an embedding.
LARGEST_DIFFERENCE = 1e-3
MOST_RESULTS = 2048


def torch_encoder(place: Place) -> Mapping[str, Figure]:
    """The torch engine in every precision: texts/s, and how far it ranks as fp32 does."""
    needs(*TORCH_NEEDS)
    import retriever
    from retriever.learning.agreement import scorers_agree

    precisions = ("fp32", "bf16") if place.quick else ("fp32", "fp16", "bf16")
    figures: dict[str, Figure] = {}
    with random_artifact(place, onnx=False) as (folder, cases, queries):
        scorers = {
            precision: retriever.load(folder, "torch", str(place.device), precision=precision)
            for precision in precisions
        }
        sides: Any = {
            precision: lambda scorer=scorer: scorer.project_texts(cases)
            for precision, scorer in scorers.items()
        }
        took = wall_medians(place, sides, 1 if place.quick else 5)
        for precision, scorer in scorers.items():
            pace = len(cases) / took[precision]
            figures[f"encoder_{precision}"] = Figure(pace, "texts/s")
            line = (
                f"{precision}: {pace:>9.0f} texts/s, {took['fp32'] / took[precision]:.2f} of fp32"
            )
            if precision != "fp32":
                agreed = scorers_agree(scorers["fp32"], scorer, queries, cases)
                figures[f"encoder_{precision}_overlap"] = Figure(agreed.overlap, "share", 0.99)
                figures[f"encoder_{precision}_error"] = Figure(
                    agreed.largest, "logits", 2e-2, at_most=True
                )
                line += f"; best 8 shared {agreed.overlap:.3f}, largest error {agreed.largest:.2e}"
            print(line, flush=True)
    print("(a random encoder: its cases are alike, which makes the best 8 hard to keep)")
    return figures


def onnx_encoder(place: Place) -> Mapping[str, Figure]:
    """ONNX Runtime on CUDA through its bindings, against ONNX Runtime on the CPU."""
    needs(*TORCH_NEEDS, *ONNX_NEEDS)
    from retriever.engines.runtime import import_runtime

    onnxruntime = import_runtime()
    if not place.on_gpu:
        raise Skipped("bindings are used on CUDA only")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise Skipped("this onnxruntime has no CUDA provider; install onnxruntime-gpu")
    import retriever

    with random_artifact(place, onnx=True) as (folder, cases, queries):
        on_gpu = retriever.load(folder, "onnx", str(place.device))
        on_cpu = retriever.load(folder, "onnx", "cpu")
        worst = 0.0
        for texts in (cases[:1], cases[:3], cases[:257], queries):
            differences = on_gpu.project_texts(texts) - on_cpu.project_texts(texts)
            worst = max(worst, float(np.abs(differences).max()))
        if not worst <= LARGEST_DIFFERENCE:
            raise Wrong(f"a projection on CUDA is off by {worst:.2e}")
        took = wall_medians(place, {"cuda": lambda: on_gpu.project_texts(cases)}, 5)["cuda"]
    pace = len(cases) / took
    print(f"{pace:.0f} texts/s on {on_gpu.provider}; the largest difference is {worst:.2e}")
    return {"encoder_onnx_cuda": Figure(pace, "texts/s")}


def faiss_indexes(place: Place) -> Mapping[str, Figure]:
    """What FAISS's GPU indexes can do, which `retriever.tiers.gpu` was built on by reading."""
    needs("faiss")
    import faiss

    if not place.on_gpu:
        raise Skipped("FAISS's GPU indexes need a GPU")
    if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
        raise Skipped("this faiss has no GPU indexes, or sees no GPU; install faiss-gpu")
    rng = place.rng(6)
    vectors = rng.standard_normal((20_000, 64), dtype=np.float32)
    resources = faiss.StandardGpuResources()
    number = place.device.index or 0
    flat = faiss.index_cpu_to_gpu(resources, number, faiss.IndexFlatIP(64))
    flat.add(vectors)
    of_cpu = faiss.IndexFlatIP(64)
    of_cpu.add(vectors)
    asked = vectors[:50]
    if not np.array_equal(flat.search(asked, 8)[1], of_cpu.search(asked, 8)[1]):
        raise Wrong("the flat index finds other rows on the GPU than on the CPU")
    quantiser = faiss.IndexFlatIP(64)
    lists = faiss.IndexIVFFlat(quantiser, 64, 32, faiss.METRIC_INNER_PRODUCT)
    lists.train(vectors)
    ivf = faiss.index_cpu_to_gpu(resources, number, lists)
    ivf.add(vectors)
    allowed = faiss.IDSelectorRange(0, 100)
    limits = {
        "flat ignores a selector": ignores(flat, asked, faiss.SearchParameters(sel=allowed)),
        "ivf ignores a selector": ignores(
            ivf, asked, faiss.SearchParametersIVF(sel=allowed, nprobe=32)
        ),
        f"flat refuses more than {MOST_RESULTS} results": refuses(
            lambda: flat.search(asked, MOST_RESULTS + 1)
        ),
        "flat cannot remove": refuses(lambda: flat.remove_ids(np.arange(3))),
        "ivf cannot remove": refuses(lambda: ivf.remove_ids(np.arange(3))),
        "flat refuses add_with_ids": refuses(
            lambda: flat.add_with_ids(vectors[:2], np.arange(2, dtype=np.int64))
        ),
    }
    for said, holds in limits.items():
        print(f"{said}: {'yes, as assumed' if holds else 'NO: the adapter may do better here'}")
    shared = {kind: found_by_index(place, kind, vectors, asked) for kind in ("flat", "ivf")}
    if shared["flat"] < 1:
        raise Wrong(f"cosine search by a flat index found {shared['flat']:.4f} of the best 8")
    return {"faiss_limits_as_assumed": Figure(sum(limits.values()), "of 6")} | {
        f"faiss_{kind}_recall": Figure(share, "share") for kind, share in shared.items()
    }


def found_by_index(place: Place, kind: str, vectors: Any, queries: Any) -> float:
    """The share of the true best 8 that the product's own index finds, with rows forgotten."""
    from retriever.index import CosineIndex
    from retriever.tiers.settings import IndexSettings

    count = len(vectors)
    ids, live = np.arange(1, count + 1), np.ones(count, np.bool_)
    block: Any = Bank(ids, np.ones(count, np.int64), live, (), embeddings=(vectors,))
    index = CosineIndex(IndexSettings(kind=kind, device=str(place.device)))
    index.follow(block)
    less = live.copy()
    less[::3] = False
    block = dataclasses.replace(block, live=less, version=2)
    found = index.search(block, queries, 8)
    units = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1)[:, None]
    cosines = np.where(less, queries @ units.T, -np.inf)
    best = np.argsort(-cosines, axis=1, kind="stable")[:, :8]
    shares = [len(set(rows) & set(own)) / 8 for (rows, _), own in zip(found, best, strict=True)]
    share = float(np.mean(shares))
    print(f"cosine search by {kind} on {index.device}: {share:.4f} of the best 8 found")
    return share


def ignores(index: Any, queries: Any, params: Any) -> bool:
    """Whether a filter of rows 0 to 99 lets others through."""
    try:
        found = index.search(queries, 8, params=params)[1]
    except Exception as error:
        print(f"  (a selector is refused: {type(error).__name__})")
        return False
    return bool((found >= 100).any())


def refuses(work: Any) -> bool:
    """Whether FAISS raises."""
    try:
        work()
    except Exception:
        return True
    return False


@contextmanager
def random_artifact(place: Place, *, onnx: bool) -> Iterator[tuple[Path, list[str], list[str]]]:
    """An exported retriever of MiniLM's shape with random weights, case texts and queries."""
    from benchmarks.planted import planted_rows, random_encoder
    from retriever.learning.config import EncoderConfig, PlantedConfig
    from retriever.learning.encoder import load_encoder
    from retriever.learning.export import ExportFacts, export_artifact
    from retriever.learning.model import CaseClassifier, SplitHead

    rows = planted_rows(PlantedConfig(rows=400 if place.quick else 12_000, seed=place.seed))
    layers, width = (2, 64) if place.quick else (6, 384)
    with tempfile.TemporaryDirectory() as name, torch.random.fork_rng():
        torch.manual_seed(place.seed)
        source = random_encoder(
            Path(name) / "encoder", rows.query_texts + rows.case_texts, layers=layers,
            hidden_size=width,
        )  # fmt: skip
        encoder = load_encoder(EncoderConfig(source=str(source), pooling="mean"))
        head = SplitHead(encoder.hidden_size, place.hidden)
        model = CaseClassifier(encoder.model, encoder.pooling, head)
        folder = Path(name) / "artifact"
        export_artifact(folder, model, encoder.tokenizer, ExportFacts(source="random"), onnx=onnx)
        cases = rows.case_texts[: 60 if place.quick else 4000]
        yield folder, cases, rows.query_texts[: 20 if place.quick else 200]


def wall_medians(place: Place, sides: Any, rounds: int) -> dict[str, float]:
    """Medians of whole calls, which end on the host: an event would not see the host's part."""
    return Place(torch.device("cpu"), place.quick, place.seed).medians(sides, rounds)


def needs(*modules: str) -> None:
    """Skip where one is not installed."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise Skipped(f"{', '.join(missing)} not installed")
