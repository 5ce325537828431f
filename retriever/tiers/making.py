"""From a plan to an empty, trained tier, and from a saved index back to one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retriever.tiers.flat import FlatTier
from retriever.tiers.graph import GraphTier
from retriever.tiers.ivf import IvfTier
from retriever.tiers.module import faiss_module
from retriever.tiers.plan import Plan
from retriever.tiers.settings import IndexSettings
from retriever.tiers.tier import HostTier
from retriever.types import Floats

#: k-means rounds; more changed recall by less than its error.
ROUNDS = 10


def trained(plan: Plan, settings: IndexSettings, sample: Floats) -> Any:
    """An empty FAISS index of the plan's kind, its quantisers trained: (n, E) -> index.

    The same sample and seed give the same index.
    """
    faiss = faiss_module()

    width, product = sample.shape[1], faiss.METRIC_INNER_PRODUCT
    code = _quantiser(settings.storage)
    if plan.kind == "ivf":
        coarse = faiss.IndexFlatIP(width)
        if code is None:
            index = faiss.IndexIVFFlat(coarse, width, plan.lists, product)
        else:
            index = faiss.IndexIVFScalarQuantizer(coarse, width, plan.lists, code, product, False)
        index.cp.seed, index.cp.niter = settings.seed + 1, ROUNDS
        index.cp.spherical = True  # the vectors have length one
        # Centres that begin far apart: from random ones two clusters could share a list for good,
        # and 125 of 1,000 lists at a million rows found .99 of the best instead of 1.0.
        if hasattr(faiss, "ClusteringInitMethod_AFK_MC2"):  # not in every FAISS from 1.14 on
            index.cp.init_method = faiss.ClusteringInitMethod_AFK_MC2
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 1 << 20
    elif plan.kind == "hnsw":
        if code is None:
            index = faiss.IndexHNSWFlat(width, settings.links, product)
        else:
            index = faiss.IndexHNSWSQ(width, code, settings.links, product)
    elif code is None:
        index = faiss.IndexFlatIP(width)
    else:
        index = faiss.IndexScalarQuantizer(width, code, product)
    if not index.is_trained:
        index.train(np.ascontiguousarray(sample, np.float32))
    return index


def host_tier(
    plan: Plan,
    settings: IndexSettings,
    index: Any,
    rows: int = 0,
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> HostTier:
    """The tier around an index, which is empty or of `rows` rows of a block.

    Raises:
        KeyError, TypeError, AttributeError: the index is not of the plan's kind.
    """
    if plan.kind == "ivf":
        return IvfTier(index, plan.probes, rows)
    if plan.kind == "hnsw":
        nodes = None if arrays is None else arrays["rows"].astype(np.int64)
        return GraphTier(index, settings.breadth, settings.rebuild_share, nodes)
    return FlatTier(index)


def _quantiser(storage: str) -> Any:
    faiss = faiss_module()

    kinds = {
        "float32": None,
        "float16": faiss.ScalarQuantizer.QT_fp16,
        "int8": faiss.ScalarQuantizer.QT_8bit,
    }
    return kinds[storage]
