"""Keeping house: retire, compact, delete-namespace, schedule."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from memory import Budget, rfc3339
from memory.forgetting.compaction import POLICIES
from memory.times import microseconds
from service.command.errors import CommandError
from service.command.forgetting import show_receipt
from service.command.opening import opened
from service.command.options import actor_of, add_act, add_actor, add_index_folder
from service.command.output import Output


def add_to(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the subcommands of this file."""
    parser = command("retire", "Purge what is older than a moment.")
    parser.add_argument("--before", required=True, metavar="TIME", help="RFC 3339")
    add_act(parser)
    parser.set_defaults(run=_retire)

    parser = command("compact", "Keep what fits a budget; what goes may be stored again.")
    parser.add_argument("--max-cases", type=int, metavar="N")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="of words and vectors")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="newest", help="what stays")
    add_act(parser)
    parser.set_defaults(run=_compact)

    parser = command("delete-namespace", "Delete a namespace with everything in it.")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_actor(parser)
    add_index_folder(parser)
    parser.set_defaults(run=_delete_namespace)

    parser = command("schedule", "Requests to forget that wait for their time.")
    parser.add_argument("action", choices=("list", "run", "cancel"))
    parser.add_argument("number", type=int, nargs="?", help="of `cancel`")
    add_index_folder(parser)
    parser.set_defaults(run=_schedule)


def _retire(args: argparse.Namespace, out: Output) -> int:
    with opened(args) as (bank, _, _):
        before = microseconds(args.before)
        tried = bank.retire(before, namespace=args.namespace, dry_run=True)
        if args.dry_run:
            show_receipt(tried, out)
            return 0
        if tried.ids:
            question = f"Purge {tried.count} cases from before {rfc3339(before)}?"
            out.agreed(question, yes=args.yes)
        receipt = bank.retire(before, namespace=args.namespace, actor=actor_of(args))
        show_receipt(receipt, out)
    return 0


def _compact(args: argparse.Namespace, out: Output) -> int:
    if args.max_cases is None and args.max_bytes is None:
        raise CommandError("a budget is needed: give --max-cases or --max-bytes")
    budget = Budget(args.max_cases, args.max_bytes)
    with opened(args) as (bank, _, _):
        tried = bank.compact(budget, args.policy, namespace=args.namespace, dry_run=True)
        if args.dry_run:
            show_receipt(tried, out)
            return 0
        if tried.ids:
            freed = tried.counts["bytes"]
            out.agreed(f"Drop {tried.count} cases, {freed:,} bytes?", yes=args.yes)
        receipt = bank.compact(budget, args.policy, namespace=args.namespace, actor=actor_of(args))
        show_receipt(receipt, out)
    return 0


def _delete_namespace(args: argparse.Namespace, out: Output) -> int:
    with opened(args) as (bank, _, _):
        if args.name in bank.namespaces():
            count = bank.count(args.name)
            question = f"Delete namespace {args.name!r} with {count} cases and all it holds?"
            out.agreed(question, yes=args.yes)
        show_receipt(bank.delete_namespace(args.name, actor=actor_of(args)), out)
    return 0


def _schedule(args: argparse.Namespace, out: Output) -> int:
    if (args.action == "cancel") != (args.number is not None):
        raise CommandError("`schedule cancel NUMBER`; list and run take no number")
    with opened(args) as (bank, _, _):
        if args.action == "cancel":
            bank.schedule.cancel(args.number)
            out.data({"cancelled": args.number})
            out.line(f"request {args.number} was cancelled")
        elif args.action == "run":
            receipts = bank.schedule.run()
            out.data([receipt.to_json() for receipt in receipts])
            out.line(f"{len(receipts)} requests were due")
            rows = ((r.uid, r.namespace, r.mode, r.count, r.erased) for r in receipts)
            if receipts:
                out.table(("receipt", "namespace", "mode", "cases", "erased"), rows)
        else:
            waiting = bank.schedule.waiting()
            out.data(
                [
                    {
                        "number": due.id,
                        "namespace": due.namespace,
                        "due_at": rfc3339(due.due_at),
                        "actor": due.actor,
                    }
                    for due in waiting
                ]
            )
            rows_ = ((due.id, due.namespace, rfc3339(due.due_at), due.actor) for due in waiting)
            if waiting:
                out.table(("number", "namespace", "due", "who"), rows_)
            else:
                out.line("nothing waits")
    return 0
