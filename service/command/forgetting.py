"""Forgetting, and the proof of it: forget, verify, erase."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from memory import (
    ByDerivedFact,
    ByIds,
    BySource,
    BySpan,
    ByStrings,
    ByTag,
    ByText,
    CaseBank,
    NewCase,
    Receipt,
    Replacement,
    Selector,
    rfc3339,
)
from memory.conversation import request
from memory.times import microseconds
from service.command.errors import CommandError
from service.command.looking import CASE_COLUMNS, case_row
from service.command.opening import Opened, opened
from service.command.options import (
    actor_of,
    add_act,
    add_models,
    stdin_lines,
    texts_of,
)
from service.command.output import Output

_SHOWN = 20  # cases that a dry run shows


def add_to(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the subcommands of this file."""
    parser = command(
        "forget",
        "Forget cases, what was derived from them, and their copies. "
        "A text of - is read from stdin, so that it is in no shell history.",
    )
    parser.add_argument("--ids", type=int, nargs="+", action="extend", metavar="ID")
    parser.add_argument("--source", action="append", metavar="SOURCE")
    parser.add_argument("--tag", action="append", metavar="TAG")
    parser.add_argument("--from", dest="start", metavar="TIME", help="of a span (RFC 3339)")
    parser.add_argument("--to", dest="end", metavar="TIME", help="of a span (RFC 3339)")
    parser.add_argument("--text", action="append", metavar="TEXT", help="what says this")
    parser.add_argument("--string", action="append", metavar="TEXT", help="what holds this")
    parser.add_argument("--fact", action="append", metavar="TEXT", help="a derived conclusion")
    parser.add_argument(
        "--keep-sources", action="store_true", help="of --fact: it may be inferred again"
    )
    parser.add_argument("--replace", metavar="OLD", help="what holds this value goes ...")
    parser.add_argument("--with", dest="new", metavar="NEW", help="... and this is stored instead")
    parser.add_argument("--request", metavar="WORDS", help="a request in plain words")
    parser.add_argument("--mode", choices=("purge", "invalidate"), default="purge")
    parser.add_argument("--at", metavar="TIME", help="later: `schedule run` does it (RFC 3339)")
    add_act(parser)
    add_models(parser)
    parser.set_defaults(run=_forget)

    parser = command("verify", "Prove that strings, or what a receipt names, are gone.")
    parser.add_argument("strings", nargs="*", metavar="STRING", help="none: lines of stdin")
    parser.add_argument("--receipt", metavar="UID", help="check a receipt instead")
    parser.add_argument("--request", metavar="WORDS", help="the request, as one more probe")
    add_models(parser)
    parser.set_defaults(run=_verify)

    parser = command("erase", "Overwrite the bytes of everything that was deleted.")
    parser.add_argument("--deep", action="store_true", help="although nothing is owed")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="to wait for others")
    parser.set_defaults(run=_erase)


def show_receipt(receipt: Receipt, out: Output) -> None:
    """Print what went, or what would go."""
    out.data(receipt.to_json())
    what = "kept only for history" if receipt.mode == "invalidate" else "gone"
    out.line(f"{'would be ' if receipt.dry_run else ''}{what}: {receipt.count} cases")
    out.facts(
        {
            "receipt": receipt.uid,
            "namespace": receipt.namespace,
            "mode": receipt.mode,
            "ids": receipt.ids,
            "counts": {name: count for name, count in receipt.counts.items() if count},
            "matched by": receipt.matched_by,
            "stored instead": receipt.replaced_by,
            "to rebuild": tuple(item.id for item in receipt.rebuild),
            "sources cut": receipt.sources,
            "inference": "cannot be excluded" if receipt.kept_sources else None,
            "still held by": receipt.still_held or None,
            "artifacts": receipt.artifacts,
            "not reached": receipt.unreached,
            "bytes": None if receipt.dry_run else receipt.erased,
        }
    )
    if not receipt.dry_run and receipt.erased == "pending":
        out.note("the bytes are still to be overwritten: run `precedent erase`")


def _forget(args: argparse.Namespace, out: Output) -> int:
    if args.request is not None:
        _check_alone(args)
        return _requested(args, out)
    selectors = _selectors(args)
    with opened(args) as (bank, _, encoder):
        if args.text and encoder is None:
            out.note("--text is compared by words only; --encoder FOLDER compares meanings too")
        if args.at is not None:
            return _scheduled(bank, selectors, args, out)
        wish: dict[str, Any] = {"namespace": args.namespace, "mode": args.mode}
        tried = bank.forget(selectors, dry_run=True, **wish)
        if args.dry_run:
            show_receipt(tried, out)
            _show_cases(bank, tried, out)
            return 0
        if tried.ids or args.string or args.replace:
            what = "Forget" if args.mode == "purge" else "Keep only for history"
            out.agreed(f"{what} {tried.count} cases of namespace {args.namespace!r}?", yes=args.yes)
        show_receipt(bank.forget(selectors, actor=actor_of(args), **wish), out)
    return 0


def _check_alone(args: argparse.Namespace) -> None:
    """A request in words says itself what is meant, and when."""
    others = ("ids", "source", "tag", "start", "end", "text", "string", "fact", "replace", "new")
    given = [name for name in (*others, "at") if getattr(args, name)]
    if args.mode != "purge":
        given.append("mode")
    if args.keep_sources:
        given.append("keep-sources")
    if given:
        raise CommandError(f"--request stands alone; leave --{given[0]} out, or the request")


def _selectors(args: argparse.Namespace) -> list[Selector]:
    found: list[Selector] = []
    if args.ids:
        found.append(ByIds(tuple(args.ids)))
    found += [BySource(source) for source in args.source or []]
    found += [ByTag(tag) for tag in args.tag or []]
    if args.start is not None or args.end is not None:
        found.append(BySpan(args.start, args.end))
    found += [ByText(text) for text in texts_of(args.text, "texts")]
    strings = texts_of(args.string, "strings")
    if strings:
        found.append(ByStrings(tuple(strings)))
    found += [
        ByDerivedFact(text, keep_sources=args.keep_sources) for text in texts_of(args.fact, "facts")
    ]
    if args.new is not None and args.replace is None:
        raise CommandError("--with needs --replace OLD")
    if args.replace is not None:
        new = None if args.new is None else NewCase(args.new, kind="fact")
        (old,) = texts_of([args.replace], "old value")[:1]
        found.append(Replacement(old=old, new=new))
    if not found:
        raise CommandError(
            "nothing is named: give --ids, --source, --tag, --from/--to, --text, --string, --fact, "
            "--replace or --request"
        )
    return found


def _scheduled(
    bank: CaseBank, selectors: list[Selector], args: argparse.Namespace, out: Output
) -> int:
    if args.dry_run:
        raise CommandError("--at and --dry-run exclude each other: what is meant is decided then")
    moment = microseconds(args.at)
    number = bank.schedule.add(
        selectors, moment, namespace=args.namespace, mode=args.mode, actor=actor_of(args)
    )
    out.data({"scheduled": number, "due_at": rfc3339(moment)})
    out.line(f"request {number} waits until {rfc3339(moment)}; `precedent schedule run` does it")
    return 0


def _requested(args: argparse.Namespace, out: Output) -> int:
    """A request in plain words, which may turn out to mean one of several things."""
    (words,) = texts_of([args.request], "request")[:1]
    with opened(args) as (bank, _, _):
        about: Any = {"namespace": args.namespace, "actor": actor_of(args)}
        tried = request(bank, words, **about, dry_run=True)
        if not isinstance(tried, Receipt):
            candidates = list(getattr(tried, "candidates", ()))
            out.data({"ambiguous": tried is not None, "candidates": candidates})
            out.line(
                "nothing is asked to be forgotten"
                if tried is None
                else f"it is not clear what is meant: {getattr(tried, 'why', '')}"
            )
            if candidates:
                cases = bank.known(candidates, namespace=args.namespace, history=True)
                out.table(CASE_COLUMNS, map(case_row, cases.values()))
            raise CommandError("nothing was forgotten; name cases by --ids")
        if args.dry_run:
            show_receipt(tried, out)
            _show_cases(bank, tried, out)
            return 0
        if tried.ids:
            out.agreed(f"Forget {tried.count} cases of namespace {args.namespace!r}?", yes=args.yes)
        done = request(bank, words, **about)
        if not isinstance(done, Receipt):
            raise CommandError("the cases it meant have changed meanwhile; nothing was forgotten")
        show_receipt(done, out)
    return 0


def _show_cases(bank: CaseBank, tried: Receipt, out: Output) -> None:
    ids = tried.ids[:_SHOWN]
    if ids:
        cases = bank.known(ids, namespace=tried.namespace, history=True)
        out.table(CASE_COLUMNS, map(case_row, cases.values()))


def _verify(args: argparse.Namespace, out: Output) -> int:
    if args.receipt is not None and args.strings:
        raise CommandError("give strings or --receipt, not both")
    what: Any = None
    if args.receipt is None:
        what = args.strings or stdin_lines("strings")
    with opened(args) as found:
        bank = found.bank
        if args.receipt is not None:
            what = next((r for r in bank.receipts() if r.uid == args.receipt), None)
            if what is None:
                raise CommandError(f"there is no receipt {args.receipt}; see `receipts --all`")
        result = bank.verify(
            what, namespace=args.namespace, request=args.request, prober=_prober(found)
        )
    out.data(result.to_json())
    out.line("clean: nothing was found" if result.clean else "NOT clean")
    out.facts(
        {
            "probes": f"{result.probes} in {', '.join(result.modes)}" if result.probes else None,
            "read": f"{result.files} files, {result.bytes_read:,} bytes" if result.files else None,
            "still held by cases": result.still_held,
            "too short to scan for": result.unscanned,
            "not reached": result.unreached,
            "erasure": "pending: run `precedent erase`" if result.pending else None,
        }
    )
    if result.findings:
        rows = ((f.layer, f.what, f.number, f.where) for f in result.findings)
        out.table(("where", "found by", "number", "file"), rows)
    return 0 if result.clean else 1


def _prober(found: Opened) -> Any:
    if found.scorer is None:
        return None
    from retriever.searcher import Searcher

    return Searcher(found.bank, found.scorer, found.encoder, lexical=found.bank)


def _erase(args: argparse.Namespace, out: Output) -> int:
    with opened(args) as (bank, _, _), out.progress("erasing") as tell:
        state = bank.erase(
            timeout_s=args.timeout,
            deep=args.deep,
            progress=None if tell is None else lambda _, done, total: tell(done, total),
        )
    out.data(
        {"state": state.state, "reason": state.reason, "steps": state.steps, "of": state.of_steps}
    )
    out.line("every deleted byte is overwritten" if state.done else f"pending: {state.reason}")
    return 0 if state.done else 1
