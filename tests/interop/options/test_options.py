"""Flags and config files mean what they mean to nsqd: the same table for both, see option_cases."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.interop.nsqd_process import NEEDS_NSQD, NSQD
from tests.interop.options.option_cases import CASES, NAMES, Case, Outcome, changed, run

from martlet.cli.servers.broker import arguments
from martlet.cli.start import WRONG
from martlet.options import BrokerOptions, OptionError

pytestmark = pytest.mark.interop

RECORDED = json.loads(Path(__file__).with_name("nsqd_options.json").read_text(encoding="utf-8"))
MARTLET = [sys.executable, "-m", "martlet", "broker"]
_OTHER_DEFAULTS = {"log_prefix": "[nsqd] "}
"""Defaults of nsqd that differ from ours."""
_FLAGS = {flag.config_key: flag for flag in BrokerOptions.flags().values()}


def values_of(options: BrokerOptions) -> dict[str, Any]:
    """The options as ``/config`` shows them."""
    values = {key: getattr(options, _FLAGS[key].field) for key in NAMES}
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
    }


def outcome_of(case: Case, folder: Path) -> Outcome:
    """Return Martlet's outcome of a case, without starting a process for it."""
    try:
        values, _ = arguments().read(case.put_config(folder))
        options = BrokerOptions(**values)
    except SystemExit as exit_:
        return {"exit": exit_.code}
    except OptionError as error:
        return {"exit": WRONG, "says": str(error)}
    return changed({"values": values_of(options)}, values_of(BrokerOptions()))


def expected_of(case: Case) -> Outcome:
    """Return nsqd's outcome; where it ends with 1 or 2, we end with 2 and are not started again."""
    outcome: Outcome = case.ours or RECORDED["cases"][case.name]
    if outcome.get("exit"):
        return {"exit": WRONG}
    return {key: outcome[key] for key in ("exit", "values") if key in outcome}


def test_defaults_are_nsqds() -> None:
    ours = values_of(BrokerOptions())
    assert {key: ours[key] for key in RECORDED["defaults"]} == {
        **RECORDED["defaults"],
        **{key: ours[key] for key in _OTHER_DEFAULTS},
    }
    assert {key: RECORDED["defaults"][key] for key in _OTHER_DEFAULTS} == _OTHER_DEFAULTS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_flags_mean_the_same_as_for_nsqd(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = outcome_of(case, tmp_path)
    says = outcome.pop("says", "") or capsys.readouterr().err
    assert outcome == expected_of(case), says
    if outcome.get("exit") and "is not TOML" not in says:
        named = {piece.lstrip("-").partition("=")[0] for piece in case.arguments}
        if case.config:
            assert isinstance(case.config, str)
            named |= {line.partition("=")[0].strip() for line in case.config.splitlines()}
        named |= {_FLAGS[key].name for key in named & _FLAGS.keys()}
        assert any(name in says for name in named), says


@pytest.mark.parametrize("case", [case for case in CASES if case.ours], ids=lambda case: case.name)
def test_differs_from_nsqd_only_where_a_reason_is_given(case: Case) -> None:
    recorded = RECORDED["cases"][case.name]
    assert case.why
    assert {key: recorded.get(key) for key in case.ours or ()} != case.ours


def test_the_process_reads_flags_as_its_parts_do() -> None:
    chosen = {
        "--max-rdy-count=0x10",
        "--max-rdy-count=5.0",
        "--version --node-id=5000",
        "--node-id=1024",
        "--e2e-processing-latency-percentile=0.5,x",
        '--log-level=error + log_level = "debug"',
        "+ deflate = 1",
        '+ msg_timeout = "soon"',
    }
    defaults = RECORDED["defaults"] | {"id": None, "broadcast_address": None}
    cases = [case for case in CASES if case.name in chosen]
    assert len(cases) == len(chosen)
    with ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(lambda case: run(MARTLET, case), cases)
        for case, outcome in zip(cases, outcomes, strict=True):
            expected = expected_of(case)
            assert outcome.get("exit") == expected.get("exit"), outcome
            for key in expected.get("values", ()):
                assert outcome["values"][key] == expected["values"][key] != defaults[key]


@NEEDS_NSQD
def test_recorded_outcomes_are_those_of_nsqd() -> None:
    assert NSQD is not None
    command = [NSQD]
    defaults = run(command, Case())["values"]
    with ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(lambda case: changed(run(command, case), defaults), CASES)
        outcome_of = {case.name: outcome for case, outcome in zip(CASES, outcomes, strict=True)}
    assert outcome_of == RECORDED["cases"]
