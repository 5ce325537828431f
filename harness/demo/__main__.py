"""`python -m harness.demo [--log FILE --cases FILE] [--out DIR]`; `make demo` calls it."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from harness.demo.errors import DemoFailed
from harness.demo.run import Demo, run
from harness.demo.show import console
from retriever.errors import RetrieverError


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 when all of it went well, 1 with one message when not, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m harness.demo", description=__doc__)
    parser.add_argument("--log", type=Path, help="an outcome log (JSONL); without it one is made")
    parser.add_argument("--cases", type=Path, help="the case bank (JSONL) that belongs to --log")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("outputs/demo"),
        help="emptied first; default %(default)s",
    )
    parser.add_argument("--rows", type=int, help="rows of the log that is made")
    parser.add_argument(
        "train",
        nargs="*",
        metavar="KEY=VALUE",
        help="overrides for train.py, such as trainer.epochs=2",
    )
    given = parser.parse_args(arguments)
    # A terminated demo takes the way of Ctrl-C: what it started is stopped.
    signal.signal(signal.SIGTERM, _interrupt)
    screen = console()
    try:
        run(Demo(given.out, given.log, given.cases, given.rows, tuple(given.train)), screen)
    except (DemoFailed, RetrieverError) as error:
        sys.stdout.flush()
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started has been stopped\n")
        return 130
    return 0


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
