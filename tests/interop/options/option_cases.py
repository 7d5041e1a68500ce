r"""Command lines and config files, given to nsqd once and to Martlet in each test.

    python -m tests.interop.options.option_cases /path/to/nsqd \
        > tests/interop/options/nsqd_options.json

records what nsqd makes of them: the exit code and the last word where it refuses to start, and
otherwise the options that it then has by ``GET /config/NAME``, where they are not its defaults.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

Outcome = dict[str, Any]
"""``{"exit": 1, "says": "..."}``, or ``{"values": {"id": 7}}``."""


def _words(text: str) -> list[str]:
    return text.split()


NAMES = tuple(
    _words("""
    auth_http_addresses broadcast_address broadcast_http_port broadcast_tcp_port data_path deflate
    e2e_processing_latency_percentiles e2e_processing_latency_window_time
    http_client_connect_timeout http_client_request_timeout https_address id log_level log_prefix
    max_body_size max_bytes_per_file max_channel_consumers max_deflate_level
    max_heartbeat_interval max_msg_size max_msg_timeout max_output_buffer_size
    max_output_buffer_timeout max_rdy_count max_req_timeout mem_queue_size
    min_output_buffer_timeout msg_timeout nsqlookupd_tcp_addresses output_buffer_timeout
    queue_scan_selection_count queue_scan_worker_pool_max snappy statsd_address
    statsd_exclude_ephemeral statsd_interval statsd_mem_stats statsd_udp_packet_size sync_every
    sync_timeout tls_cert tls_client_auth_policy tls_key tls_min_version tls_required
    tls_root_ca_file
    """)
)
"""Names asked of ``/config``: all of nsqd 1.3 but those that differ by machine or run."""

CONFIG = "options.toml"
_START_S = 60.0
_LOG_HEAD = re.compile(r"^(\[\w+\] )?\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(\.\d+)? (\w+: )?")
_GO_VERSION = re.compile(r"(?<=built w/go)[0-9.]+")


class Case(NamedTuple):
    """A command line, and the config file beside it if there is one."""

    arguments: tuple[str, ...] = ()
    config: str | bytes | None = None
    ours: Outcome | None = None
    """Where Martlet does otherwise: what it does."""
    why: str = ""
    """And the reason."""

    @property
    def name(self) -> str:
        """The case in one line."""
        parts = [*self.arguments]
        if isinstance(self.config, str):
            parts.append("+ " + "; ".join(self.config.split("\n")))
        elif self.config is not None:
            parts.append(f"+ {self.config!r}")
        return " ".join(parts)

    def put_config(self, folder: Path) -> list[str]:
        """The whole command line, with the config file written where it says."""
        if self.config is None:
            return list(self.arguments)
        data = self.config.encode() if isinstance(self.config, str) else self.config
        (folder / CONFIG).write_bytes(data)
        return [f"--config={folder / CONFIG}", *self.arguments]


def _flags(*lines: str) -> list[Case]:
    """A case a line; ``_`` stands for a space in an argument."""
    return [Case(tuple(piece.replace("_", " ") for piece in line.split())) for line in lines]


def _files(*texts: str) -> list[Case]:
    return [Case((), text) for text in texts]


def _refused(exit_code: int) -> Outcome:
    return {"exit": exit_code}


def _has(**values: object) -> Outcome:
    return {"values": values}


FORMS = [
    Case(),
    *_flags(
        "-max-rdy-count 7",
        "--max-rdy-count 7",
        "-max-rdy-count=7",
        "--max-rdy-count=7",
        "--max-rdy-count=7 --max-rdy-count=8",
        "---max-rdy-count=7",
        "-=7",
        "--max-rdy-count=",
        "--max-rdy-count",
        "--max-rdy-counts=7",
        "--Max-Rdy-Count=7",
        "--max-rdy-count=7 --",
        "--broadcast-address=",
        "--broadcast-address -x",
        "--broadcast-address --deflate=false",
        "--broadcast-address=a=b",
        "-verbose",
        "-verbose=false",
        "-verbose=perhaps",
        "-worker-id",
        "-worker-id=true",
        "-worker-id=5",
        "-version",
        "--version=true --max-rdy-count=7",
        "--version=false --max-rdy-count=7",
        "--version=perhaps",
        "--version --no-such-flag",
        "--version --node-id=5000",
        "-h",
        "-help",
        "--help",
        "--config=",
        "--config=/no/such/file",
        "--config",
    ),
    *(
        Case(arguments, ours=_refused(2), why="nsqd drops what follows, and says nothing")
        for arguments in (
            ("--deflate", "false", "--max-rdy-count=7"),
            ("stray", "--max-rdy-count=7"),
            ("-", "--max-rdy-count=7"),
            ("--", "--max-rdy-count=7"),
        )
    ),
]


def _values(flag: str, texts: str) -> list[Case]:
    """A case a value; ``_`` stands for a space in it."""
    return _flags(*(f"--{flag}={text}" for text in texts.split()))


KINDS = [
    # whole numbers
    *_values("max-rdy-count", "0x10 0o17 017 0b11 +5 _5 5.0 1e3 ٣ 99999999999999999999"),
    *_values("mem-queue-size", "-1 0"),
    *_values("max-output-buffer-size", "1 0x100"),
    *_values("sync-every", "1 0"),
    *_flags(
        "--max-msg-size=2048",
        "--max-body-size=4096",
        "--max-bytes-per-file=8192",
        "--queue-scan-selection-count=0",
        "--queue-scan-worker-pool-max=64",
        "--max-channel-consumers=3",
        "--statsd-udp-packet-size=1432",
    ),
    # true and false
    *_values("deflate", "1 t T true TRUE True 0 f F false FALSE False yes tRUE"),
    *_flags(
        "--deflate",
        "--deflate=",
        "--snappy=false",
        "--statsd-mem-stats=false",
        "--statsd-exclude-ephemeral",
    ),
    # durations
    *_values("msg-timeout", "1h30m 1.5s .5s 100ms 1500000us 1500000µs +2s 30 1d 1s_ s 3000000h"),
    *_values("max-req-timeout", "0 0s"),
    *_values("output-buffer-timeout", "0 1s"),
    *_flags(
        "--msg-timeout=",
        "--max-msg-timeout=30m",
        "--max-heartbeat-interval=2m",
        "--max-output-buffer-timeout=1s",
        "--min-output-buffer-timeout=1ms",
        "--sync-timeout=5s",
        "--statsd-interval=10s",
        "--http-client-connect-timeout=1s",
        "--http-client-request-timeout=1m",
        "--http-client-request-timeout=0 --http-client-connect-timeout=0",
        "--e2e-processing-latency-window-time=5m",
    ),
    # lists
    *_values("e2e-processing-latency-percentile", "0.5 0.5,0.99,1 0.5,0.5 1e-3 0 1.1 -0.5 0.5,x"),
    *_values("e2e-processing-latency-percentile", "0.5,_0.9"),
    *_flags(
        "--e2e-processing-latency-percentile=",
        "--e2e-processing-latency-percentile=0.5 --e2e-processing-latency-percentile=0.99,1.0",
        "--lookupd-tcp-address=a:1",
        "--lookupd-tcp-address=a:1 --lookupd-tcp-address b:2",
        "--lookupd-tcp-address=a:1,b:2",
    ),
    # choices
    *_values("log-level", "debug info warn error fatal INFO Warn warning 2"),
    *_values("tls-min-version", "tls1.0 tls1.1 tls1.2 TLS1.3 ssl3.0 1.2"),
    *_values("tls-required", "false F 0 perhaps true TCP-https"),
    *_flags("--log-level=", "--tls-min-version=", "--tls-required=", "--tls-required"),
    # limits
    *_values("node-id", "0 1023 1024 -1 x"),
    *_values("max-deflate-level", "1 9 0 10"),
    *_values("https-address", "127.0.0.1:0 nonsense"),
    *_flags(
        "--broadcast-tcp-port=4150",
        "--broadcast-http-port=4151",
        "--broadcast-address=example.org",
        "--statsd-address=127.0.0.1:8125",
        "--log-prefix=[x]_",
        "--auth-http-address=127.0.0.1:1 --auth-http-address=http://b/auth",
    ),
]
STRICTER = [
    Case(("--broadcast-tcp-port=70000",), ours=_refused(1), why="there is no such port"),
    Case(("--broadcast-http-port=-1",), ours=_refused(1), why="there is no such port"),
    Case(("--msg-timeout=0",), ours=_refused(1), why="nothing could be finished in time"),
    Case(("--msg-timeout=-1s",), ours=_refused(1), why="nothing could be finished in time"),
    Case(("--max-msg-size=0",), ours=_refused(1), why="nothing could be published"),
    Case(("--max-rdy-count=-1",), ours=_refused(1), why="nothing could be consumed"),
    Case(("--sync-timeout=0",), ours=_refused(1), why="nsqd starts, and panics at the first topic"),
    Case(
        ("--e2e-processing-latency-percentile=nan",),
        ours=_refused(1),
        why="there is no such percentile",
    ),
]
PRECEDENCE = [
    Case(("--max-rdy-count=7",), "max_rdy_count = 8"),
    Case(("--max-rdy-count=2500",), "max_rdy_count = 8"),
    Case((), "max_rdy_count = 8"),
    Case(("--deflate=true",), "deflate = false"),
    Case(("--lookupd-tcp-address=a:1",), 'nsqlookupd_tcp_addresses = ["b:2", "c:3"]'),
    Case(("--log-level=error",), 'log_level = "debug"'),
    Case(("--tls-min-version=tls1.3",), 'tls_min_version = "tls1.1"'),
    Case(("--tls-min-version=",), 'tls_min_version = "tls1.1"'),
    # what the command line overrides is not looked at, but for three
    Case(("--msg-timeout=5s",), 'msg_timeout = "soon"'),
    Case(("--max-rdy-count=7",), "max_rdy_count = [1]"),
    Case(("--log-level=error",), 'log_level = "loud"'),
    Case(("--tls-min-version=tls1.3",), 'tls_min_version = "tls9"'),
    Case(("--tls-required=false",), 'tls_required = "perhaps"'),
    Case(("--node-id=5",), "id = 5000"),
    Case(("--config=/dev/null",), "max_rdy_count = 8"),
]
KINDS += [Case(("--max-rdy-count=1_000",)), Case(("--max_rdy_count=7",))]
KEYS = {
    "id": ("7", "1024", '"7"', '"0x7"', '" 7"', '"1_0"', "7.0", "true"),
    "max_rdy_count": ("0x10", "1_000", '"many"', "7\nmax_rdy_count = 8", "7 junk"),
    "max_msg_size": ('"2048"', "1024768"),
    "msg_timeout": ('"90s"', "1500", '"1500"', '"soon"', "1.5", "true"),
    "max_req_timeout": ('"0"', "0"),
    "deflate": ("false", '"false"', '"f"', '"no"', "0", "1", "1.0", "[]"),
    "nsqlookupd_tcp_addresses": ('["a:1", "b:2"]', '"a:1,b:2"'),
    "e2e_processing_latency_percentiles": (
        *("[1.0, 0.99, 0.95]", "[0.95, 1.0]", '"0.95, 1.0"', "[1.5]", '"x"'),
    ),
    "log_level": ('"warn"', '"DEBUG"', '"loud"', "2"),
    "tls_required": ("false", "0", '"f"', "true", '"tcp-https"', '"perhaps"', "2"),
    "tls_min_version": ('""', '"tls1.2"', '"TLS1.3"', '"ssl3.0"', "1.2"),
}
FILES = _files(
    *(f"{key} = {value}" for key, values in KEYS.items() for value in values),
    "",
    "# a comment",
    "node_id = 7",
    "max-rdy-count = 7",
    "MAX_RDY_COUNT = 7",
    "max_rdy_count =",
    "max_rdy_counts = 7",
    "[nsqd]\nmax_rdy_count = 7",
    "snappy = 1",
    'broadcast_address = "example.org"',
    "broadcast_tcp_port = 4150",
    'lookupd_tcp_address = ["a:1"]',
    'auth_http_addresses = ["127.0.0.1:1"]',
    "e2e_processing_latency_percentile = [0.5]",
    'tls_cert = ""\ntls_key = ""',
    'tls_client_auth_policy = ""',
    'verbose = true\nworker_id = 5\nversion = true\nconfig = "x"',
    'colour = "blue"',
    "max_deflate_level = 12",
    "statsd_interval = 5000",
)
FILES += [
    Case((), b"\xef\xbb\xbfid = 7\n"),
    Case((), b"id = 7\r\nmax_rdy_count = 8\r\n"),
    Case((), b'log_prefix = "\xff"\n'),
    Case(
        (),
        "broadcast_address = 5",
        ours=_refused(1),
        why="nsqd prints the number as a text that nobody means: %!s(int64=5)",
    ),
    Case((), "nsqlookupd_tcp_addresses = []", ours=_has(), why="nsqd says null for an empty list"),
    Case((), "nsqlookupd_tcp_addresses = 5", ours=_refused(1), why="nsqd ignores it"),
    Case((), "nsqlookupd_tcp_addresses = [5]", ours=_refused(1), why="nsqd panics, with exit 2"),
    Case(
        (),
        "e2e_processing_latency_percentiles = 0.5",
        ours=_has(e2e_processing_latency_percentiles=[0.5]),
        why="nsqd ignores it",
    ),
    Case(
        (),
        "e2e_processing_latency_percentiles = [1, 0.5]",
        ours=_has(e2e_processing_latency_percentiles=[1, 0.5]),
        why="nsqd panics",
    ),
]
CASES = [*FORMS, *KINDS, *STRICTER, *PRECEDENCE, *FILES]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=5)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(self._path)


def ask(path: Path, name: str) -> object:
    """Return the answer of ``GET /config/NAME`` on a Unix socket: a number, a list or a text."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", f"/config/{name}")
        response = connection.getresponse()
        body = response.read().decode()
        if response.status != 200:
            return f"{response.status} {body}"
        is_json = "json" in response.headers.get("Content-Type", "")
        return json.loads(body) if is_json else body
    finally:
        connection.close()


def last_word(text: str, exit_code: int) -> str:
    """Return the line that says why a command ended, without times and Go's version."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    panics = [line for line in lines if line.startswith("panic")]
    line = panics[0] if panics else lines[-1 if exit_code == 1 else 0]
    return _GO_VERSION.sub("", _LOG_HEAD.sub("", line))


def run(command: list[str], case: Case) -> Outcome:
    """Start a broker with a case's arguments, and see what comes of it."""
    with tempfile.TemporaryDirectory(prefix="options") as name:
        folder = Path(name)
        addresses = (f"--tcp-address={folder / 'tcp'}", f"--http-address={folder / 'http'}")
        process = subprocess.Popen(
            [*command, *addresses, *case.put_config(folder)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            deadline_s = time.monotonic() + _START_S
            while process.poll() is None:
                try:
                    return {"values": {key: ask(folder / "http", key) for key in NAMES}}
                except OSError:
                    if time.monotonic() > deadline_s:
                        raise
                    time.sleep(0.005)
            assert process.stdout is not None
            said = process.stdout.read().replace(name, "FOLDER")
            return {"exit": process.returncode, "says": last_word(said, process.returncode)}
        finally:
            process.kill()
            process.communicate()


def changed(outcome: Outcome, defaults: dict[str, Any]) -> Outcome:
    """The outcome, of its values only those that are no defaults."""
    if "values" not in outcome:
        return outcome
    values = outcome["values"]
    return {"values": {key: values[key] for key in NAMES if values[key] != defaults[key]}}


def record(program: str) -> dict[str, Any]:
    """Record the outcome of nsqd for every case."""
    defaults = run([program], Case())["values"]
    outcomes = {case.name: changed(run([program], case), defaults) for case in CASES}
    for key in ("id", "broadcast_address"):  # made from the host's name
        del defaults[key]
    return {"defaults": defaults, "cases": outcomes}


def main() -> None:
    """Record what the nsqd named on the command line does."""
    json.dump(record(sys.argv[1]), sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
