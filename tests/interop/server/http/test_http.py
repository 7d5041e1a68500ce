"""Martlet's HTTP answers beside those that nsqd 1.3.0 gave to the same requests."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.interop.nsqd_process import NEEDS_NSQD, NSQD
from tests.interop.server.http import http_cases, http_table
from tests.interop.server.http.http_cases import LIMITS, Answer, Case

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "nsqd_http.json").read_text(encoding="utf-8")
)


broker = brokers.process(*LIMITS)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def differences(answers: list[tuple[Case, Answer]]) -> list[str]:
    assert len(answers) == len(RECORDED), "the record is of other requests: make it anew"
    differing = []
    for (case, answer), recorded in zip(answers, RECORDED, strict=True):
        ours = {"request": f"{case.method} {case.target}", **http_cases.normalised(answer)}
        if ours != recorded:
            differing.append(f"{case}\n  nsqd: {recorded}\n  here: {ours}")
    return differing


def test_answers_are_those_of_nsqd(broker: BrokerProcess) -> None:
    answers = http_cases.all_answers(port_of(broker.tcp_address), port_of(broker.http_address))
    assert differences(answers) == []


@NEEDS_NSQD
def test_recorded_answers_are_those_of_nsqd() -> None:
    assert NSQD is not None
    with http_cases.nsqd(NSQD) as (tcp_port, http_port):
        answers = http_cases.all_answers(tcp_port, http_port)
    assert differences(answers) == []


@NEEDS_NSQD
def test_a_large_table_of_requests_is_answered_as_by_nsqd() -> None:
    assert NSQD is not None
    cases = list(http_table.cases())
    with BrokerProcess(None, *LIMITS) as process:
        ours = list(http_table.answers(port_of(process.http_address), cases))
    with http_cases.nsqd(NSQD) as (_, http_port):
        theirs = list(http_table.answers(http_port, cases))
    differing = [
        f"{case}\n  nsqd: {nsqd}\n  here: {here}"
        for case, here, nsqd in zip(cases, ours, theirs, strict=True)
        if http_cases.normalised(here) != http_cases.normalised(nsqd)
    ]
    assert differing == [], f"{len(differing)} of {len(cases)}"
