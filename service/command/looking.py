"""Looking without touching: search, list, get, receipts, stats."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memory import Case, Receipt, rfc3339
from service.command.errors import CommandError
from service.command.opening import Opened, opened
from service.command.options import add_filter, add_models, filter_of
from service.command.output import Output

_MODES = ("lexical", "exact", "cosine", "ann", "hybrid")


def add_to(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the subcommands of this file."""
    parser = command("search", "The best cases for a query.")
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("-k", type=int, default=10, help="how many (default: 10)")
    parser.add_argument(
        "--mode", choices=_MODES, help="default: exact with --artifact, cosine with --encoder"
    )
    add_models(parser)
    add_filter(parser)
    parser.set_defaults(run=_search)

    parser = command("list", "Cases by id.")
    parser.add_argument("--after", type=int, metavar="ID", help="those with larger ids")
    parser.add_argument("--limit", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--history", action="store_true", help="also what is kept only for history")
    add_filter(parser)
    parser.set_defaults(run=_list)

    parser = command("get", "Whole cases.")
    parser.add_argument("ids", type=int, nargs="+", metavar="ID")
    parser.set_defaults(run=_get)

    parser = command("receipts", "Who forgot how much, and when.")
    parser.add_argument("--all", action="store_true", help="of every namespace, gone ones too")
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write all of them, for `restore`"
    )
    parser.set_defaults(run=_receipts)

    command("stats", "What the bank holds, and its size.").set_defaults(run=_stats)


def case_json(case: Case) -> dict[str, Any]:
    """A case with its place in the bank."""
    row = case.to_json()
    row.pop("id", None)
    return {
        "id": case.id,
        "external_id": case.external_id,
        "version": case.version,
        **row,
        "stored_at": None if case.stored_at is None else rfc3339(case.stored_at),
        "invalidated_at": None if case.invalidated_at is None else rfc3339(case.invalidated_at),
    }


def case_row(case: Case) -> tuple[object, ...]:
    """A case as a row of a table."""
    told = "" if case.created_at is None else rfc3339(case.created_at)
    return case.id, case.kind, case.outcome, told, case.tags, case.query


CASE_COLUMNS = ("id", "kind", "outcome", "told", "tags", "query")


def _search(args: argparse.Namespace, out: Output) -> int:
    _check_text(args.text)
    mode = args.mode or _mode_of(args)
    with opened(args) as found:
        scores = dict(_hits(found, args, mode))
        # What was forgotten after it was found is not there any more.
        cases = list(found.bank.known(scores, namespace=args.namespace).values())
    out.data(
        {
            "mode": mode,
            "hits": [
                {"rank": rank, "score": scores[case.id], "case": case_json(case)}
                for rank, case in enumerate(cases, start=1)
            ],
        }
    )
    if cases:
        out.table(("score", *CASE_COLUMNS), ((scores[c.id], *case_row(c)) for c in cases))
    else:
        out.line("no case was found")
    return 0


def _check_text(text: str) -> None:
    if not text.strip():
        raise CommandError("TEXT is blank; give words to search for")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise CommandError("TEXT is not valid UTF-8; give it in the encoding of the shell")


def _mode_of(args: argparse.Namespace) -> str:
    if args.artifact is not None and args.encoder is not None:
        raise CommandError("two models are named; say --mode exact, cosine, ann or hybrid")
    if args.artifact is not None:
        return "exact"
    return "lexical" if args.encoder is None else "cosine"


def _hits(found: Opened, args: argparse.Namespace, mode: str) -> Sequence[tuple[int, float]]:
    where = filter_of(args)
    if mode == "lexical":
        return found.bank.search_text(args.text, args.k, namespace=args.namespace, where=where)
    if mode in ("exact", "ann") and found.scorer is None:
        raise CommandError(f"{mode} mode needs --artifact FOLDER")
    if mode == "cosine" and found.encoder is None:
        raise CommandError("cosine mode needs --encoder FOLDER")
    if found.scorer is None and found.encoder is None:
        raise CommandError("hybrid mode needs --artifact FOLDER or --encoder FOLDER")
    from retriever.searcher import Searcher

    searcher = Searcher(found.bank, found.scorer, found.encoder, lexical=found.bank)
    (hits,) = searcher.search([args.text], args.k, namespace=args.namespace, mode=mode, where=where)
    return [(hit.id, hit.score) for hit in hits]


def _list(args: argparse.Namespace, out: Output) -> int:
    with opened(args) as (bank, _, _):
        cases = bank.list(
            namespace=args.namespace,
            after=args.after,
            limit=args.limit,
            where=filter_of(args, history=args.history),
        )
    full = len(cases) == args.limit
    after = cases[-1].id if full else None
    out.data({"cases": [case_json(case) for case in cases], "next": after})
    if cases:
        out.table(CASE_COLUMNS, map(case_row, cases))
    else:
        out.line("no cases")
    if full:
        out.note(f"there may be more: --after {after}")
    return 0


def _get(args: argparse.Namespace, out: Output) -> int:
    with opened(args) as (bank, _, _):
        cases = bank.get(args.ids, namespace=args.namespace)
    out.data([case_json(case) for case in cases])
    for case in cases:
        out.facts(case_json(case))
    return 0


def _receipts(args: argparse.Namespace, out: Output) -> int:
    with opened(args) as (bank, _, _):
        if args.export is not None:
            count = bank.export_receipts(args.export)
            out.data({"path": str(args.export.absolute()), "receipts": count})
            out.line(f"{count} receipts of the whole bank written to {args.export}")
            return 0
        found = bank.receipts(None if args.all else args.namespace)
    out.data([receipt.to_json() for receipt in found])
    if found:
        columns = ("receipt", "when", "mode", "namespace", "who", "cases", "erased")
        out.table(columns, map(_receipt_row, found))
    else:
        out.line("no receipts")
    return 0


def _receipt_row(receipt: Receipt) -> tuple[object, ...]:
    when = rfc3339(receipt.created_at)
    place = receipt.namespace or "(deleted)"
    return receipt.uid, when, receipt.mode, place, receipt.actor, receipt.count, receipt.erased


def _stats(args: argparse.Namespace, out: Output) -> int:
    with opened(args) as (bank, _, _):
        stats = bank.stats()
    out.data(stats.to_json())
    out.facts(
        {
            "bank": f"{stats.location} ({stats.engine}, full text by {stats.lexical})",
            "uid": stats.uid,
            "database": None if stats.database_bytes is None else f"{stats.database_bytes:,} bytes",
            "snapshots": f"{stats.snapshots} files, {stats.snapshot_bytes:,} bytes",
            "erasure": stats.erasure,
            "receipts that wait for it": stats.receipts_pending or None,
        }
    )
    columns = ("namespace", "cases", "by kind", "scored", "history", "vectors", "runs", "scored")
    rows = [
        (n.name, n.cases, n.by_kind, n.scored, n.history, n.vectors, n.runs, n.scored_runs)
        for n in stats.namespaces
    ]
    if rows:
        out.table(columns, rows)
    else:
        out.line("no namespaces")
    return 0
