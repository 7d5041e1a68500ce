"""The options of the admin page, named as nsqadmin names its flags."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network
from typing import ClassVar

from martlet.addresses import is_loopback
from martlet.options.addresses import (
    AddressOptions,
    address_option,
    check_trusted,
    lookup_option,
    trusted_brokers_option,
)
from martlet.options.flag import OptionError, Size, option
from martlet.options.network import connect_timeout, operator_token_file, request_timeout
from martlet.options.storage import MIB
from martlet.text import SECOND_NS

_HIGHEST_PORT = 65535
_NO_GRAPHITE = "rates are the page's own"
_PATH = re.compile(r"/?([A-Za-z0-9._~-]+/)*[A-Za-z0-9._~-]*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class AdminOptions(AddressOptions):
    """The options of ``martlet admin``."""

    http_address: str = option(
        "127.0.0.1:4171", "<addr>:<port> to listen on for browsers", section="addresses"
    )
    base_path: str = option("/", "the path of the page behind a proxy, such as /martlet")
    verb: ClassVar[str] = "show"
    nsqd_http_addresses: tuple[str, ...] = address_option(
        "nsqd-http-address", config_key="nsqd_http_addresses"
    )
    lookupd_http_addresses: tuple[str, ...] = lookup_option(config_key="nsqlookupd_http_addresses")
    operator_token_file: str = operator_token_file()
    trusted_brokers: tuple[str, ...] = trusted_brokers_option()
    http_client_connect_timeout_ns: int = connect_timeout()
    http_client_request_timeout_ns: int = request_timeout()
    http_client_tls_root_ca_file: str = option(
        "",
        "the authorities to trust when brokers are asked over HTTPS: at https:// addresses, and"
        " where they refuse plain HTTP",
        section="TLS",
    )
    http_client_tls_cert: str = option("", "this page's certificate for brokers")
    http_client_tls_key: str = option("", "the key of --http-client-tls-cert")
    http_client_tls_insecure_skip_verify: bool = option(False, "trust any certificate of brokers")
    acl_http_header: str = option(
        "X-Forwarded-User",
        "the header in which a trusted proxy names the user",
        section="users",
    )
    admin_users: tuple[str, ...] = option(
        (),
        "a user who may act; may be given several times; without any, everyone who may see the page"
        " may act",
        name="admin-user",
        config_key="admin_users",
    )
    reader_users: tuple[str, ...] = option(
        (),
        "a user who may see messages' bodies and not act; may be given several times",
        name="reader-user",
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "a network such as 10.0.0.0/8 whose --acl-http-header counts, beside loopback; may be given"
        " several times",
        name="trusted-proxy",
    )
    htpasswd_file: str = option(
        "", "a file of users and bcrypt passwords, made by htpasswd -B; the page asks for them"
    )
    allow_anonymous_admin: bool = option(
        False,
        "without users, let anyone act on an address that is not loopback, as nsqadmin does",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "a name by which browsers reach the page, beside localhost and literal addresses; may be"
        " given several times",
        name="allowed-host",
    )
    allow_config_from_cidr: str = option(
        "127.0.0.1/8", "the network from which /config is answered; empty for any"
    )
    read_only: bool = option(False, "let no user act", section="restrictions")
    bodies: bool = option(True, "show messages' bodies; --bodies=false hides them from all users")
    export: bool = option(True, "let messages be downloaded; --export=false forbids it")
    job_pages: tuple[str, ...] = option(
        (),
        "a page that a pipeline's job writes (report's --page, audit's --out), or a folder of such;"
        " may be given several times",
        name="job-page",
        section="jobs",
    )
    audit_file: str = option(
        "",
        "append a line of JSON for each action; of what was refused, FILE.refused has a line for"
        " each address, reason and minute",
        section="audit",
    )
    max_audit_bytes: Size = option(
        10 * MIB,
        "maximum size of --audit-file, and of FILE.refused; then it is renamed to FILE.1, and"
        " another one begun (0: no limit)",
        limits=(0, None),
    )
    audit_backups: int = option(
        5, "the number of older audit files that are kept", limits=(1, 1000)
    )
    notification_http_endpoint: str = option("", "the URL to POST each action to")
    poll_interval_ns: int = option(
        2 * SECOND_NS,
        "how often brokers are asked while a page is open; at most once for all pages together",
        limits=(SECOND_NS // 10, None),
        section="brokers",
    )
    graphite_url: str = option("", "of graphite", section="nsqadmin", instead=_NO_GRAPHITE)
    proxy_graphite: bool = option(False, "proxy graphite", instead=_NO_GRAPHITE)
    statsd_counter_format: str = option(
        "stats.counters.%s.count", "of counters in graphite", instead=_NO_GRAPHITE
    )
    statsd_gauge_format: str = option(
        "stats.gauges.%s", "of gauges in graphite", instead=_NO_GRAPHITE
    )
    statsd_prefix: str = option("nsq.%s", "of keys in graphite", instead=_NO_GRAPHITE)
    statsd_interval_ns: int = option(
        60 * SECOND_NS, "of nsqd's pushes to statsd", instead=_NO_GRAPHITE
    )
    dev_static_dir: str = option("", "of nsqadmin's developers", instead="its files are its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        _, colon, port = self.http_address.rpartition(":")
        if not (colon and port.isascii() and port.isdigit() and int(port) <= _HIGHEST_PORT):
            raise OptionError(f"--http-address={self.http_address} must be <addr>:<port>")
        if not _PATH.fullmatch(self.base_path) or {".", ".."} & set(self.base_path.split("/")):
            raise OptionError(
                f"--base-path={self.base_path} must be a path such as /martlet, of letters, digits"
                " and . _ ~ -"
            )
        if bool(self.http_client_tls_cert) != bool(self.http_client_tls_key):
            raise OptionError(
                "--http-client-tls-cert and --http-client-tls-key are given together, or not at all"
            )
        check_trusted("--trusted-broker", self.trusted_brokers)
        named = {"trusted-proxy": self.trusted_proxies}
        if self.allow_config_from_cidr:
            named["allow-config-from-cidr"] = (self.allow_config_from_cidr,)
        for flag, networks in named.items():
            for network in networks:
                try:
                    ip_network(network, strict=False)
                except ValueError as error:
                    raise OptionError(f"--{flag}={network} is no network: {error}") from None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the page."""
        return is_loopback(self.http_address)

    @property
    def prefix(self) -> str:
        """The beginning of all paths: empty, or ``/martlet``."""
        path = self.base_path.strip("/")
        return f"/{path}" if path else ""
