"""Certificates for tests of TLS, made anew for each run."""

from __future__ import annotations

from pathlib import Path

import trustme


class Certificates:
    """An authority, what it has signed for the broker and a client, and a client's of a stranger.

    Attributes:
        flags: those of a broker with TLS.
        authority, client, client_key, stranger, stranger_key: the paths of files.
    """

    COMMON_NAME = "client.example"

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.authority = _written(folder / "authority.pem", authority.cert_pem)
        self.certificate, self.key = _pair(folder, "server", authority, "localhost", "127.0.0.1")
        self.client, self.client_key = _pair(
            folder, "client", authority, self.COMMON_NAME, common_name=self.COMMON_NAME
        )
        self.stranger, self.stranger_key = _pair(folder, "stranger", trustme.CA(), "elsewhere")
        self.flags = [f"--tls-cert={self.certificate}", f"--tls-key={self.key}"]


def _written(path: Path, blob: trustme.Blob) -> Path:
    path.write_bytes(blob.bytes())
    return path


def _pair(
    folder: Path, name: str, authority: trustme.CA, *names: str, common_name: str | None = None
) -> tuple[Path, Path]:
    leaf = authority.issue_cert(*names, common_name=common_name)
    certificate = folder / f"{name}.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    return certificate, _written(folder / f"{name}.key", leaf.private_key_pem)
