"""`precedent [--bank LOCATION] [--namespace NAME] COMMAND`: parsing, and what errors come to.

Exit status: 0, all is well; 1, `verify` found something or `erase` has to be repeated; 2, the wish
or its input is wrong, or the bank cannot be used, with one line on stderr that says why.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from memory import BankError
from service.command import files, forgetting, keeping, looking
from service.command.errors import CommandError
from service.command.options import add_common
from service.command.output import Output, plain

_WRONG = 2
_INTERRUPTED = 130  # as shells have it: 128 + SIGINT


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as every other error."""
        self.exit(_WRONG, f"{self.prog}: {plain(message, None)}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    try:
        args = _parser().parse_args(argv)
        status: int = args.run(args, Output(as_json=args.json))
        sys.stdout.flush()
        return status
    except SystemExit as done:  # --help, or a mistake that the parser found
        return int(done.code or 0)
    except BrokenPipeError:
        # Whoever read us has enough; the interpreter must not try to flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("\nprecedent: interrupted\n")
        return _INTERRUPTED
    except (CommandError, BankError, OSError) as error:
        sys.stderr.write(f"precedent: {plain(str(error), None)}\n")
        return _WRONG


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="precedent",
        description="A bank of cases: import, search, forget, prove it, back it up.",
        allow_abbrev=False,  # a script must not mean something else once an option is added
    )
    add_common(parser, first=True)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")

    def command(name: str, help_: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False)
        add_common(made, first=False)
        return made

    files.add_to(command)
    looking.add_to(command)
    forgetting.add_to(command)
    keeping.add_to(command)
    return parser
