"""TLS from the flags: the certificate, the policy for clients' certificates, and nsqd's names.

Of clients' certificates nsqd knows three policies:

==================  ======================================================================
none                a client is not asked for one
``require``         it has to show one, of any signer
``require-verify``  it has to show one that an authority of ``--tls-root-ca-file`` has signed
==================  ======================================================================

Any other word demands no certificate but makes TLS required, as each policy does. Python's ssl
refuses each certificate that it cannot verify, so ``require`` uses pyOpenSSL (`any_certificate`).

Where the flags allow TLS 1.0 or 1.1, as nsqd's default does, OpenSSL's security level is 0 for all
connections, since it speaks those versions at no other. Clients that support newer versions get
them, but ``--tls-min-version=tls1.2`` is safer.
"""

from __future__ import annotations

import ssl
import warnings

from martlet.options import BrokerOptions
from martlet.text import how_to_install

HANDSHAKE_S = 5.0
_MUST_SHOW = frozenset({"require", "require-verify"})
_OLD_CIPHERS = "DEFAULT:!aNULL:!eNULL:@SECLEVEL=0"
"""The only security level at which OpenSSL speaks TLS 1.0 and 1.1."""
_VERSIONS = {"TLSv1": "TLS1.0", "TLSv1.1": "TLS1.1", "TLSv1.2": "TLS1.2", "TLSv1.3": "TLS1.3"}
_SUITES = {
    "DES-CBC3-SHA": "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
    "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-DES-CBC3-SHA": "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "ECDHE-RSA-AES128-SHA": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
}
"""The suites whose names nsqd knows; it reports the number of any other."""


def server_context(options: BrokerOptions) -> ssl.SSLContext | None:
    """Return the TLS context that the flags describe; None without a certificate. Raises OSError: a
    file cannot be read, or has the wrong content; the text names the flag.
    """
    context = _context_class(options.tls_client_auth_policy)(ssl.PROTOCOL_TLS_SERVER)
    if options.tls_root_ca_file:
        _load_authority(context, options.tls_root_ca_file)
    if not options.tls_cert and not options.tls_key:
        if options.tls_root_ca_file:  # report a wrong file even where it is not needed
            _load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), options.tls_root_ca_file)
        return None
    for path, flag, other in (
        (options.tls_cert, "tls-cert", "tls-key"),
        (options.tls_key, "tls-key", "tls-cert"),
    ):
        if not path:
            raise OSError(f"failed to build TLS config: --{other} needs --{flag} too")
        _readable(path, flag)
    if options.tls_min_version < ssl.TLSVersion.TLSv1_2:
        context.set_ciphers(_OLD_CIPHERS)
    with warnings.catch_warnings():
        # Python advises against the old versions; the operator decides.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion(options.tls_min_version)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except OSError as error:
        raise OSError(
            f"failed to build TLS config: --tls-cert={options.tls_cert} and"
            f" --tls-key={options.tls_key} do not make a pair: {error}"
        ) from error
    if options.tls_client_auth_policy in _MUST_SHOW:
        context.verify_mode = ssl.CERT_REQUIRED
        if not options.tls_root_ca_file:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return context


def suite_name(context: ssl.SSLContext, cipher: str) -> str:
    """Return nsqd's name for a cipher suite, given OpenSSL's."""
    name = _SUITES.get(cipher)
    if name is not None:
        return name
    for suite in context.get_ciphers():
        if suite["name"] == cipher:
            return f"Unknown {suite['id'] & 0xFFFF}"
    return f"Unknown {cipher}"


def version_name(version: str) -> str:
    """Return nsqd's name for a version of TLS, given OpenSSL's."""
    return _VERSIONS.get(version, f"Unknown {version}")


def _context_class(policy: str) -> type[ssl.SSLContext]:
    if policy != "require":
        return ssl.SSLContext
    try:
        from martlet.server.any_certificate import AnyCertificateContext
    except ImportError as error:
        raise OSError(
            "failed to build TLS config: --tls-client-auth-policy=require needs the package"
            " pyOpenSSL, since Python's ssl takes no certificate that it cannot verify:"
            f" {how_to_install('pyopenssl')}; or say require-verify"
        ) from error
    return AnyCertificateContext


def _readable(path: str, flag: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise OSError(f"failed to build TLS config: --{flag}={path}: {error.strerror}") from error


def _load_authority(context: ssl.SSLContext, path: str) -> None:
    _readable(path, "tls-root-ca-file")
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise OSError(
            f"failed to build TLS config: --tls-root-ca-file={path} holds no certificate in PEM:"
            f" {error}"
        ) from error
