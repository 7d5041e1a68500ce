"""Options of all jobs."""

from __future__ import annotations

import pytest

from martlet.options.flag import OptionError
from martlet.pipeline.audit import AuditOptions
from martlet.pipeline.options import JobOptions


def test_addresses_come_one_by_one_or_with_commas() -> None:
    options = JobOptions(addresses=("a:1, b:2", "c:3", "a:1"), timeout_ns=5_000_000_000)
    assert options.http_addresses == ("a:1", "b:2", "c:3")
    assert options.source == {"addresses": "a:1,b:2,c:3", "timeoutMs": "5000"}


def test_the_token_file_is_the_sources_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    options = JobOptions(addresses=("a:1",), operator_token_file="/etc/token")
    assert options.source["operatorTokenFile"] == "/etc/token"
    assert "operatorTokenFile" not in options.sink
    monkeypatch.setenv("MARTLET_OPERATOR_TOKEN_FILE", "/etc/other")
    assert JobOptions(addresses=("a:1",)).source["operatorTokenFile"] == "/etc/other"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"addresses": ("nonsense",)}, "--address=nonsense"),
        ({"spark_conf": ("master=yarn",)}, "is not a setting; spark.executor.memory=4g is one"),
        ({"spark_conf": ("spark.ui.enabled",)}, "is not a setting"),
        ({"metrics_address": "9100"}, "--metrics-address=9100"),
    ],
)
def test_bad_options_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        JobOptions(**wrong)  # type: ignore[arg-type]


def test_brokers_have_to_be_named() -> None:
    with pytest.raises(OptionError, match="no brokers: name them"):
        JobOptions().require_brokers()
    JobOptions(lookupd_http_addresses=("l:4161",)).require_brokers()


def test_an_audit_may_have_data_folders_instead() -> None:
    with pytest.raises(OptionError, match="or data folders with --data-path=DIR"):
        AuditOptions()
    AuditOptions(data_paths=("data",))
