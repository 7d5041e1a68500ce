"""Grafana's dashboard is what its script writes, and shows what brokers serve."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.grafana.generate import FILE, text
from docs.reference.generate import served_metrics
from tests.unit.deploy.test_prometheus import NEEDS_PROMTOOL, promtool

DASHBOARD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
UNITS = {"bool_yes_no", "Bps", "bytes", "cps", "dateTimeFromNow", "percentunit", "s", "short"}
"""Those of Grafana that are used; it shows an unknown one as text behind the number."""


def panels(dashboard: dict[str, Any] = DASHBOARD) -> Iterator[dict[str, Any]]:
    for each in dashboard["panels"]:
        yield each
        yield from each.get("panels", [])


SHOWN = [each for each in panels() if each["type"] != "row"]
EXPRESSIONS = [target["expr"] for each in SHOWN for target in each["targets"]]
EXPRESSIONS += [each["expr"] for each in DASHBOARD["annotations"]["list"]]


def test_it_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), (
        "martlet.json is out of date: run python -m deploy.grafana.generate"
    )


def test_it_has_what_grafana_expects_of_a_dashboard() -> None:
    assert DASHBOARD["uid"] == "martlet"
    assert DASHBOARD["schemaVersion"] >= 36, "the first with data sources as objects"
    assert "id" not in DASHBOARD, "Grafana gives it at the import"
    ids = [each["id"] for each in panels()]
    assert len(ids) == len(set(ids))
    titles = [each["title"] for each in DASHBOARD["panels"] if each["type"] == "row"]
    assert titles[0] == "Overview"
    assert {"Topics", "Channels and groups", "Log", "Replicas", "Clients"} <= set(titles)
    for each in SHOWN:
        assert each["type"] in ("stat", "timeseries")
        assert each["fieldConfig"]["defaults"]["unit"] in UNITS
        for thing in (each, *each["targets"]):
            assert thing["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_do_not_overlap() -> None:
    for row in (DASHBOARD["panels"], *(each.get("panels", []) for each in panels())):
        taken: set[tuple[int, int]] = set()
        for each in row:
            at = each["gridPos"]
            assert at["x"] + at["w"] <= 24
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert not cells & taken, each["title"]
            taken |= cells


def test_it_can_be_narrowed_to_brokers_topics_and_channels() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", "topic", "channel"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([EXPRESSIONS, DASHBOARD["panels"]])))
    assert used == {*variables, "__rate_interval"}
    for expression in EXPRESSIONS:
        for labels in re.findall(r"(?:martlet|process|python)_\w+\{([^}]*)\}", expression):
            assert labels.startswith('job=~"$job", instance=~"$instance"')


def test_each_metric_has_a_panel_and_each_panel_a_metric() -> None:
    served = {each.name for each in served_metrics()}
    named = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for expression in EXPRESSIONS
        for name in re.findall(r"\b(?:martlet|process|python)_\w+", expression)
    }
    assert named == served


@NEEDS_PROMTOOL
def test_prometheus_understands_each_expression(tmp_path: Path) -> None:
    known = [each.replace("$__rate_interval", "5m") for each in EXPRESSIONS]
    rules = [{"record": f"panel:{at}", "expr": each} for at, each in enumerate(known)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(file))
    file.write_text(file.read_text().replace("rate(", "rote(", 1))
    with pytest.raises(AssertionError, match="rote"):
        promtool("check", "rules", str(file))
