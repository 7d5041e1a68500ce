"""Write Grafana's dashboard of brokers, martlet.json, from the metrics that they serve.

Usage: python -m deploy.grafana.generate

The first row is chosen here. Each other row has a panel for each metric of its kind: a counter is
shown as its rate, a histogram as percentiles. `tests/unit/deploy/test_grafana.py` fails if the
file is out of date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from docs.reference.generate import ServedMetric, served_metrics

FILE = Path(__file__).parent / "martlet.json"
Json = dict[str, Any]
_SCHEMA = 39
"""The version of dashboards of Grafana 11; later ones convert it."""
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_BROKERS = 'job=~"$job", instance=~"$instance"'
_WIDTH, _COLUMNS, _HEIGHT = 8, 24, 8
_CLIENTS = (
    "martlet_connections",
    "martlet_known_producers",
    "martlet_repeated_sends_total",
    "martlet_delayed_messages",
    "martlet_transaction",
)
ROWS = {
    "Topics": ("martlet_topic_",),
    "Channels and groups": ("martlet_channel_",),
    "Log": ("martlet_log_",),
    "Replicas": ("martlet_replica_",),
    "Clients": _CLIENTS,
    "Processes": ("martlet_event_loop_", "martlet_dropped_log_", "process_", "python_"),
}
"""The rows, and how the names of their metrics begin."""


class Query(NamedTuple):
    """A query of a panel: an expression, and how its series are named."""

    expression: str
    legend: str = "{{instance}}"


def panel(
    title: str,
    queries: Sequence[Query],
    unit: str,
    description: str = "",
    *,
    kind: str = "timeseries",
) -> Json:
    """Return a panel without its place."""
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": _DATASOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for number, query in enumerate(queries)
        ],
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": _STAT if kind == "stat" else _LEGEND,
    }


_STAT = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name"}
_LEGEND = {
    "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
    "tooltip": {"mode": "multi", "sort": "desc"},
}


def overview() -> list[Json]:
    """Return the panels that are seen first."""
    topics, channels = _selector(("topic",)), _selector(("topic", "channel"))
    waiting = f"sum(martlet_channel_depth_messages{channels})"
    age = f"martlet_channel_oldest_message_age_seconds{channels}"
    rates = [
        Query(f"sum(rate(martlet_{name}{selector}[$__rate_interval]))", legend)
        for name, selector, legend in (
            ("topic_published_messages_total", topics, "published"),
            ("channel_delivered_messages_total", channels, "delivered"),
            ("channel_finished_messages_total", channels, "finished"),
        )
    ]
    top = [
        panel("Brokers that answer", [Query(f"sum(up{{{_BROKERS}}})", "up")], "short", kind="stat"),
        panel(
            "Ready",
            [Query(f"martlet_ready{{{_BROKERS}}}")],
            "bool_yes_no",
            "Whether clients can publish and consume, as /health/ready says.",
            kind="stat",
        ),
        panel(
            "Alerts",
            [
                Query(
                    'sum by (alertname) (ALERTS{alertname=~"Martlet.+", alertstate="firing"})',
                    "{{alertname}}",
                )
            ],
            "short",
            "Those that fire: docs/operating/alerts.md says what to do.",
            kind="stat",
        ),
        panel("Messages", rates, "cps"),
        panel("Waiting messages", [Query(waiting, "waiting")], "short"),
        panel(
            "Oldest waiting messages",
            [Query(f"topk(10, {age})", "{{topic}}/{{channel}} {{instance}}")],
            "s",
        ),
        panel("Healthy", [Query(f"martlet_healthy{{{_BROKERS}}}")], "bool_yes_no", kind="stat"),
        panel("Topics", [Query(f"martlet_topics{{{_BROKERS}}}")], "short", kind="stat"),
        panel(
            "Versions",
            [Query(f"count by (version) (martlet_build_info{{{_BROKERS}}})", "{{version}}")],
            "short",
            kind="stat",
        ),
    ]
    for each in top:
        if each["title"] in ("Ready", "Healthy"):
            each["fieldConfig"]["defaults"] |= {"thresholds": _BELOW_1, "max": 1}
    return top


_BELOW_1 = {
    "mode": "absolute",
    "steps": [{"color": "red", "value": None}, {"color": "green", "value": 1}],
}


_PREFIX = re.compile(r"(martlet_(topic|channel|log|replica)?_?|process_)")


def panel_of(metric: ServedMetric) -> Json:
    """Return the panel of a metric."""
    selector = _selector(metric.labels)
    name = metric.name.removesuffix("_total")
    title = _PREFIX.sub("", name).removesuffix("_seconds").replace("_", " ").capitalize()
    own = [label for label in metric.labels if label != "replica_set"]
    legend = " ".join(f"{{{{{label}}}}}" for label in (*own, "instance"))
    unit = _unit(name)
    if unit == "dateTimeFromNow":
        # Grafana counts in milliseconds.
        queries = [Query(f"1000 * {metric.name}{selector}", legend)]
        return panel(title, queries, unit, metric.help, kind="stat")
    if metric.kind == "histogram":
        labels = ", ".join(["le", "instance", *own])
        buckets = f"sum by ({labels}) (rate({metric.name}_bucket{selector}[$__rate_interval]))"
        queries = [
            Query(f"histogram_quantile({share}, {buckets})", f"p{int(share * 100)} {legend}")
            for share in (0.5, 0.99)
        ]
    elif metric.kind == "counter" and metric.name.endswith("_total"):
        queries = [Query(f"rate({metric.name}{selector}[$__rate_interval])", legend)]
        # Of seconds a second, which is a share.
        unit = {"bytes": "Bps", "s": "percentunit"}.get(unit, "cps")
    else:
        queries = [Query(f"{metric.name}{selector}", legend)]
    return panel(title, queries, unit, metric.help)


def _selector(labels: Sequence[str]) -> str:
    """Select by the dashboard's variables."""
    chosen = [f'{label}=~"${label}"' for label in ("topic", "channel") if label in labels]
    return "{" + ", ".join([_BROKERS, *chosen]) + "}"


def _unit(name: str) -> str:
    if name.endswith(("_timestamp_seconds", "_start_time_seconds")):
        return "dateTimeFromNow"
    for ending, unit in (("_seconds", "s"), ("_bytes", "bytes")):
        if name.endswith(ending):
            return unit
    return "short"


def _placed(panels: Sequence[Json], top: int) -> Iterator[Json]:
    for number, each in enumerate(panels):
        row, column = divmod(number * _WIDTH, _COLUMNS)
        place = {"x": column, "y": top + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
        yield each | {"gridPos": place}


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "label": name.capitalize(),
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def variables() -> list[Json]:
    """Return what a reader of the dashboard can choose."""
    datasource = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Data source",
    }
    topics, channels = _selector(()), _selector(("topic",))
    return [
        datasource,
        _variable("job", "label_values(martlet_ready, job)"),
        _variable("instance", 'label_values(martlet_ready{job=~"$job"}, instance)'),
        _variable("topic", f"label_values(martlet_topic_channels{topics}, topic)"),
        _variable("channel", f"label_values(martlet_channel_consumers{channels}, channel)"),
    ]


def _annotation(name: str, expression: str, color: str) -> Json:
    return {
        "name": name,
        "datasource": _DATASOURCE,
        "enable": True,
        "iconColor": color,
        "expr": expression,
        "titleFormat": "{{instance}}",
    }


def dashboard() -> Json:
    """Return the dashboard."""
    panels = list(_placed(overview(), 1))
    panels.insert(0, _row("Overview", 0, [], is_collapsed=False))
    top = max(each["gridPos"]["y"] for each in panels) + _HEIGHT
    for number, (title, prefixes) in enumerate(ROWS.items(), top):
        metrics = [each for each in served_metrics() if each.name.startswith(prefixes)]
        inside = list(_placed([panel_of(each) for each in metrics], number + 1))
        panels.append(_row(title, number, inside, is_collapsed=True))
    for number, each in enumerate(_all(panels), 1):
        each["id"] = number
    return {
        "uid": "martlet",
        "title": "Martlet",
        "description": "Brokers of Martlet. Written by deploy/grafana/generate.py: do not edit.",
        "tags": ["martlet", "messaging"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables()},
        "annotations": {
            "list": [
                # Epoch 0 is before the first election.
                _annotation(
                    "Failovers",
                    f"martlet_replica_epoch{{{_BROKERS}}}"
                    f" > min_over_time((martlet_replica_epoch{{{_BROKERS}}} > 0)[2m:])",
                    "purple",
                ),
                _annotation(
                    "Restarts",
                    f"resets(martlet_event_loop_lag_seconds_count{{{_BROKERS}}}[2m]) > 0",
                    "orange",
                ),
            ]
        },
        "links": [],
        "panels": panels,
    }


def _row(title: str, top: int, panels: list[Json], *, is_collapsed: bool) -> Json:
    place = {"x": 0, "y": top, "w": _COLUMNS, "h": 1}
    return {
        "type": "row",
        "title": title,
        "collapsed": is_collapsed,
        "gridPos": place,
        "panels": panels,
    }


def _all(panels: Sequence[Json]) -> Iterator[Json]:
    for each in panels:
        yield each
        yield from _all(each.get("panels", ()))


def text() -> str:
    """Return the contents of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
