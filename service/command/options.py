"""Options that several subcommands share, and what they come to."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from typing import Any

from memory import CaseFilter
from memory.case import KINDS
from memory.checks import DEFAULT_NAMESPACE
from service.command.errors import CommandError


def add_common(parser: argparse.ArgumentParser, *, first: bool) -> None:
    """The options that may stand before or after the subcommand."""

    def default(value: Any) -> Any:
        return value if first else argparse.SUPPRESS

    parser.add_argument(
        "--bank",
        metavar="LOCATION",
        default=default(os.environ.get("PRECEDENT_BANK")),
        help="a file, or a postgresql:// URL (default: $PRECEDENT_BANK)",
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default=default(DEFAULT_NAMESPACE),
        help=f"the namespace (default: {DEFAULT_NAMESPACE})",
    )
    parser.add_argument(
        "--json", action="store_true", default=default(False), help="print JSON instead of tables"
    )


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Which cases."""
    parser.add_argument("--kind", action="append", choices=KINDS, help="of this kind (repeatable)")
    parser.add_argument("--tag", action="append", metavar="TAG", help="with this tag (repeatable)")
    parser.add_argument("--source", metavar="SOURCE", help="from this source")
    parser.add_argument("--min-outcome", type=float, metavar="X", help="outcome known, at least X")
    parser.add_argument("--max-outcome", type=float, metavar="X", help="outcome known, at most X")
    parser.add_argument("--from", dest="start", metavar="TIME", help="told at or after (RFC 3339)")
    parser.add_argument("--to", dest="end", metavar="TIME", help="told before (RFC 3339)")
    parser.add_argument("--valid-at", metavar="TIME", help="valid at this time (RFC 3339)")


def filter_of(args: argparse.Namespace, *, history: bool = False) -> CaseFilter:
    """The filter that `add_filter`'s options mean."""
    return CaseFilter(
        kinds=tuple(args.kind or ()),
        tags=tuple(args.tag or ()),
        source=args.source,
        min_outcome=args.min_outcome,
        max_outcome=args.max_outcome,
        created_from=args.start,
        created_to=args.end,
        valid_at=args.valid_at,
        invalidated=history,
    )


def add_models(parser: argparse.ArgumentParser) -> None:
    """Models, where one is needed."""
    parser.add_argument("--artifact", metavar="FOLDER", help="a trained retriever (exact mode)")
    parser.add_argument("--encoder", metavar="FOLDER", help="an untrained encoder (cosine mode)")


def add_act(parser: argparse.ArgumentParser) -> None:
    """How something that cannot be undone is done."""
    parser.add_argument("--dry-run", action="store_true", help="only say what would go")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_actor(parser)
    add_index_folder(parser)


def add_index_folder(parser: argparse.ArgumentParser) -> None:
    """Where a service saves its indexes, which hold vectors of cases."""
    parser.add_argument(
        "--index-folder",
        metavar="FOLDER",
        default=None,
        help="a service's saved indexes, of which those of the namespace are deleted, too "
        "(default: `index` beside a file, where it is there)",
    )


def add_actor(parser: argparse.ArgumentParser) -> None:
    """Who asks, for the receipt."""
    parser.add_argument("--actor", metavar="NAME", help="who asks (default: who is logged in)")


def actor_of(args: argparse.Namespace) -> str | None:
    """Who asks; None if nobody can tell."""
    if args.actor is not None:
        return str(args.actor)
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user need not have a name
        return None


def texts_of(given: list[str] | None, what: str) -> list[str]:
    """Texts as given; `-` stands for the lines of stdin, which no shell history keeps."""
    found: list[str] = []
    for text in given or []:
        found.extend(stdin_lines(what) if text == "-" else [text])
    return found


def stdin_lines(what: str) -> list[str]:
    """The lines of stdin that are not blank.

    Raises:
        CommandError: there are none.
    """
    if sys.stdin.isatty():
        sys.stderr.write(f"{what}, one a line; end with Ctrl-D\n")
    lines = [line.strip() for line in sys.stdin.read().splitlines() if line.strip()]
    if not lines:
        raise CommandError(f"stdin holds no {what}; write one a line")
    return lines
