"""What Martlet's command lines and config files have, and say, that nsqd's have not."""

import io
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from martlet.cli import start
from martlet.cli.servers.broker import arguments, main
from martlet.options import LogLevel, OptionError, TlsRequired


def read(*argv: str) -> dict[str, Any]:
    return arguments().read(argv)[0]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-tls-required"], TlsRequired.YES),
        (["-tls-required=tcp-https"], TlsRequired.EXCEPT_HTTP),
        (["--tls-required=false"], TlsRequired.NO),
    ],
)
def test_a_choice_with_true_in_it_may_stand_alone(argv: list[str], expected: TlsRequired) -> None:
    assert read(*argv) == {"tls_required": expected}


def test_sizes_have_units() -> None:
    assert read("--max-msg-size", "2MiB") == {"max_msg_size": 2 << 20}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tcp-adress=x"], "there is no flag --tcp-adress; did you mean --tcp-address?"),
        (["-zzz"], "there is no flag -zzz; see --help"),
        (["-deflate", "false"], "'false' belongs to no flag"),
        (["-msg-timeout"], "--msg-timeout needs a value"),
        (["-msg-timeout=30"], "--msg-timeout: '30' has no unit; write 30s or 30ms"),
        (["-deflate=perhaps"], "--deflate: 'perhaps' is neither true nor false"),
        (["-max-rdy-count=many"], "--max-rdy-count: 'many' is not a whole number"),
        (["-log-level=loud"], "'loud' is none of debug, info, warn, error, fatal"),
        (["-tcp-add=x"], "there is no flag -tcp-add; did you mean"),
    ],
)
def test_a_wrong_flag_is_refused_with_a_reason(argv: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        read(*argv)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tcp_address = ", "is not TOML"),
        ('msg_timeout = "soon"', "bad.cfg: msg_timeout: 'soon' is not a duration"),
        ("max_rdy_count = [1]", "max_rdy_count: [1] cannot be a int"),
        ("deflate = 3.0", "deflate: 3.0 cannot be a bool; write true or false"),
        ('tls_required = "perhaps"', "tls_required: 'perhaps' is none of"),
    ],
)
def test_errors_of_the_config_file_are_reported(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.cfg"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError) as caught:
        read(f"--config={path}")
    assert message in str(caught.value)


def test_a_number_for_true_or_false_is_read_as_nsqd_reads_it_with_a_warning(
    tmp_path: Path,
) -> None:
    path = tmp_path / "numbers.cfg"
    path.write_text("deflate = 1\nsnappy = 0\n", encoding="utf-8")
    values, warnings = arguments().read(["-config", str(path)])
    assert values == {"deflate": False, "snappy": True}
    assert warnings[0] == (
        f"{path}: deflate = 1 is read as false, as nsqd reads it; write deflate = false"
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("node_id", "id"),
        ("lookupd_tcp_address", "nsqlookupd_tcp_addresses"),
        ("sync-every", "sync_every"),
    ],
)
def test_a_key_named_like_its_flag_gets_the_right_name(
    tmp_path: Path, typed: str, meant: str
) -> None:
    path = tmp_path / "slip.cfg"
    path.write_text(f"{typed} = 7\n", encoding="utf-8")
    values, warnings = arguments().read(["-config", str(path)])
    assert values == {}
    assert warnings == [f"{path}: there is no option {typed}, it is ignored; did you mean {meant}?"]


def test_help_explains_flags_without_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        read("-help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--queue-scan-worker-pool-max N" in text
    assert "accepted without effect: nothing is scanned" in text
    assert "prefix of statsd keys, %s being the host" in text
    assert "(default: 1m0s)" in text


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("-max-deflate-level=12", "--max-deflate-level is 12; it must be between 1 and 9"),
        ("--flush", "--flush needs a value"),
    ],
)
def test_an_option_that_cannot_be_ends_the_command_with_2(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("[martlet] 2")
    assert line.endswith(f"FATAL: {message}\n")


def test_a_log_line_looks_like_nsqds() -> None:
    stream = io.StringIO()
    start.set_up_logging(LogLevel.INFO, "[me] ", stream)
    log = logging.getLogger("martlet.server.tcp")
    log.debug("unheard")
    log.info("TCP: listening on %s", "127.0.0.1:4150")
    log.warning("careful")
    first, second = stream.getvalue().splitlines()
    assert first[:5] == "[me] "
    assert len(first.split(" INFO: ")[0]) == len("[me] 2026/11/21 12:00:00.000000")
    assert first.endswith(" INFO: TCP: listening on 127.0.0.1:4150")
    assert second.endswith(" WARNING: careful")


def test_client_input_makes_no_second_log_line() -> None:
    stream = io.StringIO()
    start.set_up_logging(LogLevel.INFO, "", stream)
    log = logging.getLogger("martlet.server.tcp")
    log.error("invalid command %s", "A\r\n2026/11/21 INFO: fine\x1b[2K")
    assert stream.getvalue().endswith(
        " ERROR: invalid command A\\x0d\\x0a2026/11/21 INFO: fine\\x1b[2K\n"
    )
    assert len(stream.getvalue().splitlines()) == 1
