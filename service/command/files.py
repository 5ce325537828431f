"""Between a bank and files: import, export, backup, restore."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from memory import CaseBank
from memory.exchange.import_report import ON_BAD_LINE, ON_FORGOTTEN
from memory.storage.writing import ON_DUPLICATE
from service.command.errors import CommandError
from service.command.opening import is_there, location_of, opened
from service.command.options import add_filter, add_models, filter_of
from service.command.output import Output

_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def add_to(command: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the subcommands of this file."""
    parser = command("import", "Add the cases of a JSONL or Parquet file, once.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--on-bad-line", choices=ON_BAD_LINE, default="error")
    parser.add_argument("--on-duplicate", choices=ON_DUPLICATE, default="keep")
    parser.add_argument("--on-forgotten", choices=ON_FORGOTTEN, default="skip")
    parser.add_argument(
        "--upsert", action="store_true", help="overwrite the case that has a line's id"
    )
    parser.add_argument(
        "--again", action="store_true", help="although the same content was imported before"
    )
    add_models(parser)
    parser.set_defaults(run=_import)

    parser = command("export", "Write the live cases of a namespace to a JSONL or Parquet file.")
    parser.add_argument("file", type=Path, metavar="FILE")
    add_filter(parser)
    parser.set_defaults(run=_export)

    parser = command("backup", "Write the whole bank to a new SQLite file.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.set_defaults(run=_backup)

    parser = command(
        "restore", "Put a backup in the bank's place, and forget again what was forgotten since."
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--receipts",
        type=Path,
        metavar="FILE",
        help="of `receipts --export`, for where the bank itself is lost",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=_restore)


def _format(path: Path) -> str:
    try:
        return _FORMATS[path.suffix.lower()]
    except KeyError:
        raise CommandError(
            f"{path}: the suffix tells the format; name it .jsonl or .parquet"
        ) from None


def _import(args: argparse.Namespace, out: Output) -> int:
    format_ = _format(args.file)
    if not args.file.is_file():  # before a bank is made for it
        raise CommandError(f"{args.file} is no file; check the path")
    with opened(args, make=True) as (bank, _, _), out.progress("importing") as tell:
        load = bank.import_parquet if format_ == "parquet" else bank.import_jsonl
        report = load(
            args.file,
            namespace=args.namespace,
            on_bad_line=args.on_bad_line,
            on_duplicate=args.on_duplicate,
            on_forgotten=args.on_forgotten,
            upsert=args.upsert,
            again=args.again,
            progress=tell,
        )
    out.data(
        {
            **asdict(report),
            "skipped": [bad._asdict() for bad in report.skipped],
            "forgotten": list(report.forgotten),
        }
    )
    if report.already_imported:
        out.line(f"{args.file} was imported before; nothing was added (--again adds it once more)")
        return 0
    out.facts(
        {
            "read": report.read,
            "added": report.added,
            "updated": report.updated or None,
            "merged": report.merged or None,
            "stored before": report.resumed or None,
            "outcome unknown": report.unknown_outcomes or None,
            "forgotten once": report.forgotten,
            "bad lines": len(report.skipped) or None,
        }
    )
    for bad in report.skipped:
        out.note(f"{args.file}, line {bad.line} skipped: {bad.reason}")
    return 0


def _export(args: argparse.Namespace, out: Output) -> int:
    format_ = _format(args.file)
    with opened(args) as (bank, _, _), out.progress("exporting") as tell:
        write = bank.export_parquet if format_ == "parquet" else bank.export_jsonl
        report = write(args.file, args.namespace, where=filter_of(args), progress=tell)
    out.data({**asdict(report), "path": str(report.path)})
    out.line(f"{report.written} cases written to {report.path}")
    if report.invalidated:
        out.note(f"{report.invalidated} cases are kept only for history and were left out")
    return 0


def _backup(args: argparse.Namespace, out: Output) -> int:
    with opened(args) as (bank, _, _), out.progress("backing up") as tell:
        count = bank.backup(args.file, progress=tell)
    path = args.file.absolute()
    out.data({"path": str(path), "cases": count, "bytes": path.stat().st_size})
    out.line(f"{count} cases backed up to {path}")
    return 0


def _restore(args: argparse.Namespace, out: Output) -> int:
    location = location_of(args)
    if is_there(location):
        out.agreed("Replace the bank that is there by the backup?", yes=args.yes)
    with out.progress("restoring") as tell:
        report = CaseBank.restore(args.file, location, receipts=args.receipts, progress=tell)
    out.data(asdict(report))
    out.facts(
        {
            "cases": report.cases,
            "forgotten again": report.forgotten,
            "under receipts": report.receipts,
            "updates kept": report.updates or None,
        }
    )
    return 0
