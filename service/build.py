"""From a configuration to everything an app needs: models, bank, index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import retriever
from memory import BankConfig, CaseBank
from retriever.artifact import short_name
from retriever.embedders import CaseProjector, QueryEmbedder
from retriever.searcher import Searcher
from service.config import BankSection, ServeConfig
from service.sinks import ArtifactWitness, IndexSink
from service.state import ServiceState

log = logging.getLogger(__name__)


@contextmanager
def built(config: ServeConfig) -> Iterator[ServiceState]:
    """Load the models, open the bank, import and embed what is new; closed again on leaving."""
    scorer = retriever.load(
        config.artifact,
        engine=config.engine,
        device=config.device,
        precision=config.precision,
        threads=config.engine_threads,
    )
    log.info("scorer %s on %s", short_name(scorer.fingerprint), scorer.provider)
    encoder = None
    if config.cosine_encoder is not None:
        encoder = retriever.load_encoder(
            config.cosine_encoder,
            engine=config.engine,
            device=config.device,
            precision=config.cosine_precision,
            threads=config.engine_threads,
        )
    bank = CaseBank.open(
        config.bank.url,
        embeddings=None if encoder is None else QueryEmbedder(encoder),
        projections=CaseProjector(scorer),
        config=BankConfig(vectors=config.bank.vectors),
    )
    with bank:
        _import(bank, config.bank)
        bank.embed_missing(progress=_logged("cases embedded"))
        searcher = Searcher(
            bank,
            scorer,
            encoder,
            lexical=bank,
            index=config.index,
            index_dir=None if config.index.folder is None else Path(config.index.folder),
            device=config.device,
            storage=config.scan.storage,
            threads=config.scan.threads,
            cached_queries=config.scan.cached_queries,
        )
        searcher.warm_up()
        bank.register(IndexSink(searcher))
        bank.register_artifact(
            ArtifactWitness(Path(config.artifact), scorer.manifest, scorer.fingerprint)
        )
        limits = config.service.limits
        try:
            yield ServiceState(scorer, bank, searcher, encoder, limits, config.service.threads)
        finally:
            searcher.close()


def _import(bank: CaseBank, config: BankSection) -> None:
    if config.cases is None:
        return
    report = bank.import_jsonl(
        Path(config.cases),
        namespace=config.namespace,
        on_bad_line=config.on_bad_line,
        progress=_logged("bytes of cases imported"),
    )
    if report.already_imported:
        log.info("%s was imported before; nothing added", config.cases)
        return
    log.info(
        "%s: %d cases added, %d lines skipped", config.cases, report.added, len(report.skipped)
    )
    for bad in report.skipped:
        # The reason quotes the line; words of cases do not belong in a log.
        what = f"its {bad.field!r} is wrong" if bad.field else "not one JSON object of the format"
        log.warning("%s, line %d skipped: %s", config.cases, bad.line, what)


def _logged(what: str) -> Callable[[int, int], None]:
    """A progress callback that logs every tenth of the way: a long start must not look dead."""
    told = 0

    def tell(done: int, total: int) -> None:
        nonlocal told
        tenth = 10 * done // max(total, 1)
        if tenth > told:
            told = tenth
            log.info("%s: %d of %d", what, done, total)

    return tell
