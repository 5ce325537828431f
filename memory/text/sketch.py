"""Sketches of texts: 28 numbers each, of which near-verbatim copies share at least one.

Min-hashing (Broder 1997) of a text's eight-character pieces under hash functions that only the bank
knows, seven minima to a band: two texts share a band with the chance J^7, J their Jaccard index. At
J = 0.9, the least that counts as a copy, all 28 bands differ with a chance of 1.2e-8; texts that
have a fifth of their pieces in common share one with a chance of 4e-4. Words alone could not find
copies: a text may hold every piece of a word without the word.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from memory.text.matching import GRAM

BANDS, ROWS = 28, 7
_BLOCK = 512  # pieces hashed at once: 400 KB of hash values

# Constants of the finaliser of MurmurHash3 (A. Appleby, public domain).
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


class Sketcher:
    """Makes sketches under a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        size = GRAM + BANDS * ROWS + ROWS
        drawn = np.frombuffer(hashlib.shake_256(secret).digest(8 * size), "<u8") | np.uint64(1)
        self._letters, orders, self._fold = np.split(drawn, [GRAM, GRAM + BANDS * ROWS])
        self._orders = orders.astype(np.uint32)

    def sketch(self, plain: str) -> list[int]:
        """The bands of a text in normal form, 32 bits each; of less than eight characters, one."""
        if len(plain) < GRAM:
            whole = hashlib.blake2b(plain.encode(), key=self._secret, digest_size=4).digest()
            return [int.from_bytes(whole, "big")]
        codes = np.frombuffer(plain.encode("utf-32-le"), "<u4").astype(np.uint64)
        count = len(codes) - GRAM + 1
        hashed = np.zeros(count, np.uint64)
        for i, factor in enumerate(self._letters):
            hashed += codes[i : i + count] * factor  # modulo 2^64, as all below
        hashed = _mixed(hashed)
        hashed = (hashed >> np.uint64(32)).astype(np.uint32)  # no processor multiplies 64 so fast
        least = np.full(BANDS * ROWS, np.iinfo(np.uint32).max, np.uint32)
        for start in range(0, count, _BLOCK):
            block = hashed[start : start + _BLOCK, None] * self._orders  # (pieces, orders)
            np.minimum(least, block.min(axis=0), out=least)
        bands = _mixed((least.reshape(BANDS, ROWS) * self._fold).sum(axis=1, dtype=np.uint64))
        # Equal minima in two bands would make one number of them.
        bands ^= np.arange(BANDS, dtype=np.uint64) << np.uint64(56)
        return [int(band) for band in _mixed(bands) >> np.uint64(32)]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> _SHIFT)) * _MIX_1
    values = (values ^ (values >> _SHIFT)) * _MIX_2
    return values ^ (values >> _SHIFT)
