"""Rows, targets and their comparison."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from bench.servers import main as bench
from bench.servers import nsqload
from bench.servers.comparison import Comparison, Measurement, Side
from bench.servers.link import LoadFailed
from bench.servers.load import LoadResult
from bench.servers.report import document, table
from bench.servers.row import ROWS
from bench.servers.target import Target, TargetFailed
from martlet.testing import BrokerProcess


@pytest.fixture(scope="module")
def other() -> Iterator[Target]:
    """Another server: Martlet itself."""
    with BrokerProcess(None, "--log-level=warn") as process:
        http_port = process.http_address.rpartition(":")[2]
        yield Target.parse(f"{process.tcp_address},{http_port}", "other")


@pytest.mark.parametrize(
    ("text", "tcp", "http"),
    [
        ("localhost:4150", ("localhost", 4150), ("localhost", 4151)),
        ("10.0.0.1:4150,5000", ("10.0.0.1", 4150), ("10.0.0.1", 5000)),
        ("a:1,b:2", ("a", 1), ("b", 2)),
        ("[::1]:4150", ("::1", 4150), ("::1", 4151)),
        ("4150", ("127.0.0.1", 4150), ("127.0.0.1", 4151)),
    ],
)
def test_a_target_is_read(text: str, tcp: tuple[str, int], http: tuple[str, int]) -> None:
    target = Target.parse(text)
    assert (target.host, target.port) == tcp
    assert (target.http_host, target.http_port) == http


@pytest.mark.parametrize("text", ["", "localhost", "localhost:x", "a:0", "a:70000", "a:1,b"])
def test_a_bad_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        Target.parse(text)


def test_the_wrong_http_port_is_reported(other: Target) -> None:
    wrong = Target.parse(f"{other.host}:{other.port},{other.port}")
    with pytest.raises(TargetFailed, match="give its port after a comma"):
        wrong.version()


def test_a_rate_is_all_messages_over_the_whole_time() -> None:
    tallies = [
        LoadResult(messages=300, started_ns=1_000_000_000, ended_ns=2_000_000_000),
        LoadResult(messages=700, started_ns=1_500_000_000, ended_ns=3_000_000_000),
    ]
    assert ROWS["mpub"].evaluate(tallies) == [500.0]


def test_percentiles_of_latencies() -> None:
    latencies_ns = [number * 1000 for number in range(1, 102)]
    tally = LoadResult(messages=101, started_ns=0, ended_ns=1, latencies_ns=latencies_ns)
    assert ROWS["ping"].evaluate([tally]) == [51.0, 100.0]


def test_above_one_is_better_for_rates_and_for_latencies() -> None:
    rate = Measurement(ROWS["mpub"], "", ours=[900.0, 1000.0, 1100.0], theirs=[500.0, 400.0, 550.0])
    assert (rate.median, rate.their_median, rate.ratio) == (1000, 500, 2)
    assert rate.pair_ratios == [1.8, 2.5, 2.0]
    latency = Measurement(ROWS["ping"], "p50", ours=[50.0], theirs=[100.0])
    assert latency.ratio == 2
    assert Measurement(ROWS["mpub"], "", ours=[1.0]).ratio is None


def test_the_table_shows_medians_and_ratios() -> None:
    line = Measurement(ROWS["mpub"], "", ours=[1_000_000.0], theirs=[200_000.0])
    text = io.StringIO()
    Console(file=text, width=160).print(table([line], "martlet", "other"))
    for cell in ("MPUB of 200", "1,000,000/s", "200,000/s", "5 x"):
        assert cell in text.getvalue()


def test_rows_run_in_pairs_on_two_servers(other: Target) -> None:
    order: list[str] = []
    comparison = Comparison(ours=Side(other, None), theirs=Side(other, None), seconds=0.1, repeat=2)
    rows = [ROWS["mpub"], ROWS["consume"], ROWS["ping"], ROWS["mpub-sync"]]
    lines = comparison.run(rows, lambda row, target: order.append(row.name))
    assert order == ["mpub"] * 4 + ["consume"] * 4 + ["ping"] * 4
    measures = [(line.row.name, line.measure) for line in lines]
    assert measures == [("mpub", ""), ("consume", ""), ("ping", "p50"), ("ping", "p99")]
    for line in lines:
        assert min(*line.ours, *line.theirs) > 0
    written = document(lines, comparison, {}, {})
    assert json.loads(json.dumps(written))["rows"][0]["martlet_runs"] == lines[0].ours


def test_the_command_measures_a_broker_of_its_own_beside_another(
    other: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found.json"
    address = f"{other.host}:{other.port},{other.http_port}"
    short = ["--rows=pub,mpub-sync", "--seconds=0.1", "--repeat=1"]
    places = [f"--against={address}", f"--json={found}", f"--data-path={tmp_path}"]
    assert bench.main([*short, *places]) == 0
    printed = capsys.readouterr().out
    assert "PUB, one at a time" in printed
    rows = {row["row"]: row for row in json.loads(found.read_text(encoding="utf-8"))["rows"]}
    assert rows["pub"]["ratio"] > 0
    assert rows["mpub-sync"]["martlet"] > 0
    assert rows["mpub-sync"]["other"] is None
    assert list(tmp_path.iterdir()) == [found], "the broker's folder stayed"


@pytest.mark.parametrize(
    "arguments",
    [["--rows", "nothing"], ["--seconds", "0"], ["--repeat", "0"], ["--against", "nowhere"]],
)
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments)
    assert ended.value.code == 2


def test_a_server_that_does_not_answer_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--rows", "pub", "--broker", "127.0.0.1:9,9"]) == 1
    assert "martlet bench: 127.0.0.1:9" in capsys.readouterr().err


def program(folder: Path, text: str) -> str:
    path = folder / "load"
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_another_load_generator_is_read(other: Target, tmp_path: Path) -> None:
    path = program(
        tmp_path,
        f"assert sys.argv[1:4] == ['pub', '127.0.0.1', '{other.port}'], sys.argv\n"
        "assert sys.argv[5:] == ['2', '1', '100-300', '200', '1'], sys.argv\n"
        "print('pub messages=10 seconds=2.00 msg_s=1234 MB_s=0.1')",
    )
    assert nsqload.measure(path, other, ROWS["mpub-mixed"], 1.0) == [1234.0]
    path = program(tmp_path, "print('ping n=5000 p50=80.5us p99=200.1us p99.9=1.0us max=2.0us')")
    assert nsqload.measure(path, other, ROWS["ping"], 1.0) == [80.5, 200.1]


@pytest.mark.parametrize("text", ["sys.exit('no such topic')", "print('nothing')"])
def test_a_failed_foreign_load_generator_is_reported(
    other: Target, tmp_path: Path, text: str
) -> None:
    with pytest.raises(LoadFailed, match=r"failed: no such topic|printed no msg_s"):
        nsqload.measure(program(tmp_path, text), other, ROWS["pub"], 1.0)
