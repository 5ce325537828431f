"""Values on Hydra's command line."""

from __future__ import annotations

import re


def override(key: str, value: str) -> str:
    r"""`key='value'`, quoted so that a path with blanks, `=`, `,`, quotes or `${` arrives as it is.

    In Hydra's quoted strings a quote is escaped, and so are the backslashes before a quote,
    the closing one included; `\${` keeps OmegaConf from reading an interpolation.
    """
    escaped = re.sub(r"(\\*)('|$)", _escape, value.replace("${", r"\${"))
    return f"{key}='{escaped}'"


def _escape(found: re.Match[str]) -> str:
    backslashes, quote = found.groups()
    return 2 * backslashes + (r"\'" if quote else "")
