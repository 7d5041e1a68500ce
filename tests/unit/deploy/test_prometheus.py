"""Prometheus's rules: what they name exists, and they fire when they should."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs.reference.generate import served_metrics
from tests.docs.page import DOCS, pages

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
PROMTOOL = os.environ.get("MARTLET_PROMTOOL") or shutil.which("promtool")
NEEDS_PROMTOOL = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool on PATH, and MARTLET_PROMTOOL names none"
)


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@NEEDS_PROMTOOL
def test_promtool_understands_rules_and_configuration() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", "alerts.yaml")
    # With the files that it names.
    assert "SUCCESS" in promtool("check", "config", "prometheus.yaml")


@NEEDS_PROMTOOL
def test_promtool_understands_the_configuration_for_kubernetes(tmp_path: Path) -> None:
    text = (FOLDER / "prometheus-kubernetes.yaml").read_text(encoding="utf-8")
    # Debian's promtool does not know how to find pods: all but that is checked.
    for old, new in (
        ("kubernetes_sd_configs", "static_configs"),
        ("- role: pod", "- targets: ['a:4151']"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "prometheus.yaml").write_text(text, encoding="utf-8")
    shutil.copy(FOLDER / "alerts.yaml", tmp_path)
    assert "SUCCESS" in promtool("check", "config", str(tmp_path / "prometheus.yaml"))


@NEEDS_PROMTOOL
def test_alerts_fire_when_they_should() -> None:
    promtool("test", "rules", "alerts.test.yaml")


def test_each_alert_is_tested() -> None:
    text = (FOLDER / "alerts.test.yaml").read_text(encoding="utf-8")
    fired = set(re.findall(r"alertname=\"(\w+)\", (?:instance|channel|replica_set)=\"\w+\"", text))
    assert fired | set(re.findall(r"alertname: (\w+)", text)) == {each["alert"] for each in ALERTS}


def test_each_metric_that_a_rule_names_is_served_with_its_labels() -> None:
    labels = {each.name: set(each.labels) for each in served_metrics()}
    for each in served_metrics():
        if each.kind == "histogram":
            for suffix in ("_bucket", "_sum", "_count"):
                labels[each.name + suffix] = {*each.labels, "le"}
    for rule in ALERTS:
        used = re.findall(r"\b((?:martlet|process)_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert used or "up{" in rule["expr"]
        for name, selectors in used:
            assert name in labels, f"{rule['alert']}: brokers serve no {name}"
            chosen = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selectors))
            assert chosen <= labels[name] | {"job", "instance"}, rule["alert"]


def test_each_alert_has_a_severity_and_its_place_in_the_runbook() -> None:
    anchors = {page.path: page.anchors for page in pages()}
    names = Counter(each["alert"] for each in ALERTS)
    assert set(names.values()) == {1}
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor == rule["alert"].lower()
        assert anchor in anchors[ROOT / path], f"{path} does not say what to do"
    page = (DOCS / "operating" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (Martlet\w+)$", page, re.MULTILINE) == list(names)
