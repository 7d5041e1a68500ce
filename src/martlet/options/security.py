"""Options of security: who may connect, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from martlet.options.flag import option
from martlet.options.options import Options


class TlsRequired(IntEnum):
    """Clients that must use TLS; the numbers are nsqd's."""

    NO = 0
    EXCEPT_HTTP = 1
    YES = 2


class TlsVersion(IntEnum):
    """A version of TLS, by its number on the wire."""

    TLS1_0 = 0x0301
    TLS1_1 = 0x0302
    TLS1_2 = 0x0303
    TLS1_3 = 0x0304


_TLS_REQUIRED = tuple(
    (text, value)
    for value, texts in (
        (TlsRequired.NO, "false 0 f"),
        (TlsRequired.YES, "true 1 t"),
        (TlsRequired.EXCEPT_HTTP, "tcp-https"),
    )
    for text in texts.split()
)
_TLS_VERSIONS = (
    ("tls1.0", TlsVersion.TLS1_0),
    ("tls1.1", TlsVersion.TLS1_1),
    ("tls1.2", TlsVersion.TLS1_2),
    ("tls1.3", TlsVersion.TLS1_3),
    ("", TlsVersion.TLS1_0),
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SecurityOptions(Options):
    """Options of TLS and authorization."""

    tls_cert: str = option("", "the file of the certificate", section="TLS")
    tls_key: str = option("", "the file of the certificate's key")
    tls_root_ca_file: str = option("", "the file of the authority that signs clients' certificates")
    tls_client_auth_policy: str = option(
        "",
        "require certificates of clients: 'require': any certificate; 'require-verify': one that"
        " --tls-root-ca-file verifies; both make TLS required",
    )
    tls_required: TlsRequired = option(
        TlsRequired.NO,
        "whether clients must use TLS: true, false, or tcp-https, which leaves HTTP open",
        choices=_TLS_REQUIRED,
    )
    tls_min_version: TlsVersion = option(
        TlsVersion.TLS1_0,
        "the oldest TLS version to accept: tls1.0, tls1.1, tls1.2 or tls1.3",
        choices=_TLS_VERSIONS,
    )
    operator_token_file: str = option(
        "",
        "the file of the tokens that operators send over HTTP, one a line: the routes that nsqd"
        " does not have then answer clients with one of them, or with a certificate that"
        " --tls-root-ca-file verifies (default: these routes answer clients on this machine)",
        section="operators",
    )
    auth_http_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> or URL of an auth server: it is asked over HTTP what a client may do, with"
        " the secret that the client sends in AUTH; may be given several times: one is enough",
        name="auth-http-address",
        config_key="auth_http_addresses",
        section="authorization",
    )
    auth_http_request_method: str = option(
        "get",
        "the HTTP method of requests to the auth server: get or post",
        choices=(("get", "get"), ("post", "post")),
    )

    @property
    def tls_demanded(self) -> TlsRequired:
        """The clients that must use TLS: as set, or all where certificates are asked for."""
        if self.tls_client_auth_policy and self.tls_required is TlsRequired.NO:
            return TlsRequired.YES
        return self.tls_required
