"""Operator tokens: by them a broker knows operators, their commands and their Spark jobs.

A request has one in the header ``Authorization: Bearer TOKEN``. A file has one token a line: the
broker accepts each, and a client sends the first. So tokens are replaced one file after the other,
with the new and the old one in the broker's.
"""

from __future__ import annotations

import re
from pathlib import Path

FLAG = "operator-token-file"
SETTING = "operator_token_file"
"""Its name in the client's config file."""
VARIABLE = "MARTLET_OPERATOR_TOKEN_FILE"
"""The environment variable that stands for the flag, of commands and Spark jobs."""
SCHEME = "Bearer "
MIN_LENGTH = 16
MAX_LENGTH = 512
MAX_TOKENS = 100
_MAX_FILE_BYTES = 1 << 16
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What RFC 6750 allows."""
_HOW = "make one with `openssl rand -hex 32`"


def read_tokens(path: str, setting: str = f"--{FLAG}") -> tuple[str, ...]:
    """Read the tokens of a file.

    Args:
        path: of the file.
        setting: the name of the option that has the path, for the error.

    Raises:
        OSError: it cannot be read, has no token, too many, or a line that is none; the text names
            the file and the line, and shows no token.
    """
    name = f"{setting}={path}"
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OSError(f"{name} cannot be read: {error.strerror}") from error
    tokens: list[str] = []
    for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
        token = line.strip()
        if not token:
            continue
        if not _TOKEN.fullmatch(token):
            raise OSError(
                f"{name}: line {number} is no token, which has only letters, digits and . _ ~ + / -"
                f" with = at its end: {_HOW}"
            )
        if not MIN_LENGTH <= len(token) <= MAX_LENGTH:
            raise OSError(
                f"{name}: the token of line {number} has {len(token)} characters, and must have"
                f" {MIN_LENGTH} to {MAX_LENGTH}: {_HOW}"
            )
        tokens.append(token)
    if not tokens:
        raise OSError(f"{name} has no token: {_HOW}")
    if len(tokens) > MAX_TOKENS or len(data) > _MAX_FILE_BYTES:
        raise OSError(f"{name} has more than {MAX_TOKENS} tokens, or {_MAX_FILE_BYTES} bytes")
    return tuple(tokens)


def token_headers(path: str, setting: str = f"--{FLAG}") -> dict[str, str]:
    """Return the headers of a request with the first token of a file; none without a file.

    Raises:
        OSError: as `read_tokens`.
    """
    return {"Authorization": SCHEME + read_tokens(path, setting)[0]} if path else {}
