"""Martlet's HTTP answers beside those that nsqd 1.3.0 gave to the same requests."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests import brokers
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess
from tests.interop.server.http import http_cases, http_table
from tests.interop.server.http.http_cases import LIMITS, NSQD_FLAGS, Answer, Case, port_of

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "nsqd_http.json").read_text(encoding="utf-8")
)


broker = brokers.process(*LIMITS)


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
    with NsqdProcess(None, *NSQD_FLAGS) as nsqd:
        answers = http_cases.all_answers(port_of(nsqd.tcp_address), port_of(nsqd.http_address))
    assert differences(answers) == []


@NEEDS_NSQD
def test_a_large_table_of_requests_is_answered_as_by_nsqd() -> None:
    cases = list(http_table.cases())
    with BrokerProcess(None, *LIMITS) as process, NsqdProcess(None, *NSQD_FLAGS) as nsqd:
        ours, theirs = (
            list(http_table.answers(port_of(each.http_address), cases)) for each in (process, nsqd)
        )
    differing = [
        f"{case}\n  nsqd: {there}\n  here: {here}"
        for case, here, there in zip(cases, ours, theirs, strict=True)
        if http_cases.normalised(here) != http_cases.normalised(there)
    ]
    assert differing == [], f"{len(differing)} of {len(cases)}"
