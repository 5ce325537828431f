"""What can go wrong in `retriever`, as one tree.

RetrieverError
├── InvalidInput            the caller's mistake: a value, an option, a text (also a ValueError)
│   ├── ConfigError         a configuration key, type or value
│   ├── DataError           a line of a file: names file, line, field, value and remedy
│   └── SplitRefused        a log that cannot be split by query (one query, one class)
├── ArtifactError           a trained retriever on disk
│   ├── ArtifactNotFound    nothing there; the message names the command that makes one
│   ├── ArtifactCorrupt     bytes differ from the manifest
│   └── ArtifactForeign     not ours, or of a format we do not read
├── DeviceUnavailable       a device was asked for by name and cannot be used
├── EncoderUnavailable      an encoder source that cannot be loaded
├── NonFiniteScore          a model produced NaN or infinity
├── ParityError             two forms of one model disagree
├── IndexUnavailable        a search mode whose vectors or index do not exist
└── BankChanging            a bank that changes faster than a filter can be read
"""


class RetrieverError(Exception):
    """Base of every error that `retriever` raises on purpose."""


class InvalidInput(RetrieverError, ValueError):
    """A caller's value is wrong; the message names it and the remedy."""


class ConfigError(InvalidInput):
    """A configuration key, type or value is wrong."""


class DataError(InvalidInput):
    """A file's content is wrong; the message names file, line, field, value and remedy."""


class SplitRefused(InvalidInput):
    """A log that cannot be split by query in the way asked for."""


class ArtifactError(RetrieverError):
    """A trained retriever on disk cannot be used."""


class ArtifactNotFound(ArtifactError, FileNotFoundError):
    """There is no artifact at the path."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ArtifactCorrupt(ArtifactError):
    """A file of the artifact is missing, or its bytes differ from the manifest."""


class ArtifactForeign(ArtifactError):
    """A folder that is not one of our artifacts, or of a format this version does not read."""


class DeviceUnavailable(RetrieverError):
    """A device was named and cannot be used."""


class EncoderUnavailable(RetrieverError):
    """An encoder source that cannot be loaded."""


class NonFiniteScore(RetrieverError):
    """A model produced NaN or infinity; nothing was returned."""


class ParityError(RetrieverError):
    """Two forms of the same model disagree by more than the tolerance."""


class IndexUnavailable(RetrieverError):
    """A search mode was asked for whose vectors or index do not exist here."""


class BankChanging(RetrieverError):
    """A namespace changed, again and again, while a search read what its filter needs."""
