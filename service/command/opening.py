"""From the command's options to an open bank and, where one is asked for, to models."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memory import CaseBank
from memory.storage.database.sqlite import file_of
from memory.storage.store import is_postgres
from service.command.errors import CommandError

if TYPE_CHECKING:
    from retriever import Scorer, TextEncoder


class Opened(NamedTuple):
    """A bank, and the models that it was opened with."""

    bank: CaseBank
    scorer: Scorer | None = None
    encoder: TextEncoder | None = None


def location_of(args: argparse.Namespace) -> str:
    """Where the bank is.

    Raises:
        CommandError: nobody said.
    """
    if not args.bank:
        raise CommandError("no bank is named: give --bank LOCATION, or set PRECEDENT_BANK")
    return str(args.bank)


def is_there(location: str) -> bool:
    """Whether a bank may be there; of a server nobody knows before it is opened."""
    return is_postgres(location) or file_of(location).exists()


@contextmanager
def opened(args: argparse.Namespace, *, make: bool = False) -> Iterator[Opened]:
    """The bank, open, with the models that `--artifact` and `--encoder` name.

    Args:
        args: what the command was given.
        make: make the bank where there is none; else that is an error, for a name may be misspelt.
    """
    location = location_of(args)
    if not make and not is_there(location):
        raise CommandError(f"there is no bank at {location}; `precedent import` makes one")
    artifact, encoder = getattr(args, "artifact", None), getattr(args, "encoder", None)
    folder = _index_folder(args, location)
    if artifact is None and encoder is None:
        with CaseBank.open(location) as bank:
            _reach(bank, folder)
            yield Opened(bank)
        return
    with ExitStack() as stack:
        stack.enter_context(translated())
        import retriever
        from retriever.embedders import CaseProjector, QueryEmbedder

        scorer = None if artifact is None else retriever.load(artifact, engine="onnx")
        text_encoder = None if encoder is None else retriever.load_encoder(encoder, engine="onnx")
        bank = stack.enter_context(
            CaseBank.open(
                location,
                embeddings=None if text_encoder is None else QueryEmbedder(text_encoder),
                projections=None if scorer is None else CaseProjector(scorer),
            )
        )
        _reach(bank, folder)
        yield Opened(bank, scorer, text_encoder)


def _index_folder(args: argparse.Namespace, location: str) -> Path | None:
    """Where saved indexes may be that a removal has to reach."""
    if not hasattr(args, "index_folder"):
        return None
    if args.index_folder is not None:
        folder = Path(args.index_folder)
        if not folder.is_dir():
            # A misspelt one would leave the vectors where they are.
            raise CommandError(f"--index-folder: there is no folder {folder}")
        return folder
    beside = None if is_postgres(location) else file_of(location).with_name("index")
    return beside if beside is not None and beside.is_dir() else None


def _reach(bank: CaseBank, folder: Path | None) -> None:
    """Have what is removed from the bank leave the saved indexes, too."""
    if folder is None:
        return
    from service.saved_sink import SavedIndexSink

    bank.register(SavedIndexSink(folder))


@contextmanager
def translated() -> Iterator[None]:
    """Turn the retriever's errors, and its absence, into the command's."""
    try:
        from retriever.errors import RetrieverError
    except ImportError as error:
        raise CommandError(f"models need the retriever, which cannot be used: {error}") from error
    try:
        yield
    except RetrieverError as error:
        raise CommandError(str(error)) from error
    except ImportError as error:
        raise CommandError(
            f"models need more than is installed ({error}): pip install 'precedent-memory[cpu]'"
        ) from error
