"""Keyed digests: what stands for a text where the text itself must not stand.

HMAC-SHA256 under a secret of the bank, cut to 128 bits. A plain hash of a short text, such as a
telephone number, can be reversed by trying all of them; this cannot without the bank's secret. The
namespace and the kind of text are part of what is signed, so equal texts of two tenants have
nothing in common.

Every index of the database over words is an index over these. That is also how erasing stays
physical: SQLite overwrites what is deleted, but not the copies that a B-tree leaves in the gaps of
its pages when it splits them, and it splits pages of words that arrive in random order.
"""

from __future__ import annotations

import hmac
import secrets
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

SECRET_BYTES = 32
KEY_BYTES = 16


def new_secret() -> bytes:
    """A secret for a new bank."""
    return secrets.token_bytes(SECRET_BYTES)


def normal_form(text: str) -> str:
    """NFKC, case folded, white space collapsed: two near-verbatim copies may differ in no more.

    Beyond NFKC, what the eye does not tell apart is one: characters without width are left out,
    apostrophes are straight, and digits of every script are ASCII's.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    if not folded.isascii():
        folded = "".join(map(_plain, folded))
    return " ".join(folded.split())


def _plain(character: str) -> str:
    if character < "\x80":
        return character
    if character in "\u2018\u2019\u201b\u02bc":
        return "'"
    category = unicodedata.category(character)
    if category == "Cf":
        return ""
    return str(unicodedata.decimal(character)) if category == "Nd" else character


@dataclass(frozen=True, slots=True)
class Keys:
    """The digests of one bank."""

    secret: bytes

    def of(self, kind: str, namespace_id: int, text: str) -> bytes:
        """16 bytes for a text of a kind (`external`, `tag`, `source`, ...) in a namespace."""
        message = f"{kind}\x00{namespace_id}\x00{text}".encode()
        return hmac.digest(self.secret, message, "sha256")[:KEY_BYTES]

    def derived(self, purpose: str) -> bytes:
        """32 bytes for a purpose, from which the secret does not follow."""
        return hmac.digest(self.secret, f"derived\x00{purpose}".encode(), "sha256")

    def many(self, kind: str, namespace_id: int, texts: Iterable[str]) -> list[bytes]:
        """`of` for each text."""
        return [self.of(kind, namespace_id, text) for text in texts]

    def content(self, namespace_id: int, query: str, plan: str | None) -> bytes:
        """16 bytes for what a case says, in normal form: equal for near-verbatim copies."""
        words = normal_form(query) + "\x00" + normal_form(plan or "")
        return self.of("content", namespace_id, words)
