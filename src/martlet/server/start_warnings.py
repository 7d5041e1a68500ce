"""Warnings at a broker's start about options whose effect may surprise."""

from __future__ import annotations

import asyncio
import logging
import socket

from martlet.addresses import is_host
from martlet.options import BrokerOptions


async def warn(options: BrokerOptions, log: logging.Logger) -> None:
    """Warn of valid options that are usually a mistake."""
    if options.sync_every == 1 and options.flush != "sync":
        log.warning(
            "LOG: --sync-every=1 flushes each message to the disk, but OK does not wait for that:"
            " a power cut may take messages that were answered OK; --flush=sync makes it wait"
        )
    if options.disk_full_policy == "dead-letter" or options.dead_letter_path:
        log.warning(
            "LOG: --disk-full-policy=dead-letter and --dead-letter-path have no effect: on a full"
            " disk publishing is refused, unless --disk-full-policy=drop-oldest is given"
        )
    if (
        options.replica_name
        and options.operator_token_file
        and not (options.replica_secret_file or options.replica_tls_cert)
    ):
        log.warning(
            "REPLICA: all users of this machine are operators, whatever --operator-token-file says,"
            " by the port %s for replicas: give all of them the same --replica-secret-file",
            options.replica_address,
        )
    name = options.broadcast_address
    if options.lookupd_tcp_addresses and not is_host(name):
        log.warning(
            "LOOKUP: lookup daemons refuse this broker: its --broadcast-address %r is no host name"
            " or IP address",
            name,
        )
    if not options.lookupd_tcp_addresses and name == socket.gethostname():
        return  # The name is the default, and no lookup daemon gets it.
    try:
        await asyncio.get_running_loop().getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        log.warning(
            "LOOKUP: %r, under which clients that ask a lookup daemon are sent here, does not"
            " resolve on this machine (%s): give a name or an address that clients reach with"
            " --broadcast-address",
            name,
            error,
        )
