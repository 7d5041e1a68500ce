"""The file of operators' tokens, as brokers and clients read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from martlet.operator_tokens import MAX_TOKENS, read_tokens, token_headers

TOKEN = "0123456789abcdef"
OTHER = "fedcba9876543210=="


def test_each_line_is_a_token_and_a_client_sends_the_first(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"\n  {TOKEN}\r\n\n{OTHER}\n")
    assert read_tokens(str(path)) == (TOKEN, OTHER)
    assert token_headers(str(path)) == {"Authorization": f"Bearer {TOKEN}"}
    assert token_headers("") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no token: make one with `openssl rand -hex 32`"),
        (" \n\n", "has no token"),
        (f"{TOKEN}\nsecret", "the token of line 2 has 6 characters, and must have 16 to 512"),
        (f"{TOKEN}\nsecret secret secret", "line 2 is no token"),
        ("pässword-pässword", "line 1 is no token"),
        (f"{TOKEN}\n" * (MAX_TOKENS + 1), "has more than 100 tokens"),
        (f"{TOKEN}\n" + "\n" * 70_000, "or 65536 bytes"),
    ],
)
def test_a_wrong_file_is_named_and_no_token_shown(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(OSError, match="operator") as refused:
        read_tokens(str(path))
    assert str(refused.value).startswith(f"--operator-token-file={path}")
    assert why in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_file_is_named_with_the_option_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be read") as refused:
        token_headers(f"{tmp_path}/none", "option operatorTokenFile")
    assert str(refused.value) == (
        f"option operatorTokenFile={tmp_path}/none cannot be read: No such file or directory"
    )
