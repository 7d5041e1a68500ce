"""What a row is of: the columns that tell it from the others, and find it again when it changes.

A figure by windows has its windows and groups.  Of a query one has to look at Spark's plan: rows
change where an aggregate makes them, and what they are grouped by tells which.  Rows that no
aggregate makes do not change, each is a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from martlet.pipeline.job import JobFailed
from martlet.pipeline.report.description import Figure
from martlet.pipeline.report.query import START, name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PASSED = ("Project", "Filter", "SubqueryAlias", "EventTimeWatermark")
_NO_KEYS = ("int", "bigint", "smallint", "tinyint", "float", "double", "decimal", "array", "map")


def keys_of(figure: Figure, rows: DataFrame) -> list[str] | None:
    """The columns that say what a row is of; None where each row is a new one.

    Raises:
        JobFailed: rows change, and have nothing that they could be told apart by.
    """
    if not figure.sql:
        return [START, *(name_of(expression) for expression in figure.by)]
    if figure.mode == "complete":
        return []
    if figure.mode == "append":
        return None
    plan = analyzed = rows._jdf.queryExecution().analyzed()
    projects = []
    while (kind := _kind(plan)) in _PASSED:
        projects += [plan] if kind == "Project" else []
        plan = plan.child()
    if kind == "Aggregate":
        found = _grouped_by(figure, plan, projects)
        output = zip(rows.columns, _each(analyzed.output()), strict=True)
        return [name for name, column in output if _id(column) in found]
    if "Aggregate" not in _kinds(plan):
        return None
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    return [name for name, kind in kinds.items() if not kind.startswith(_NO_KEYS)]


def _grouped_by(figure: Figure, aggregate: Any, projects: list[Any]) -> set[int]:
    """The columns that are made of nothing but what an aggregate groups by.

    Args:
        figure: whose it is.
        aggregate: the plan's.
        projects: what is made of its columns, the last one first.
    """
    wanted: set[int] = set()
    for expression in _each(aggregate.groupingExpressions()):
        wanted |= _references(expression)
    made_of = {
        _id(named): _references(named)
        for named in _each(aggregate.aggregateExpressions())
        if not _is_aggregate(named)
    }
    for project in reversed(projects):
        columns = {_id(named): _references(named) for named in _each(project.projectList())}
        made_of = {
            id: {column for source in of for column in made_of[source]}
            for id, of in columns.items()
            if of <= made_of.keys()
        }
    if not wanted <= set().union(*made_of.values()):
        raise JobFailed(
            f"figures.{figure.name} tells rows that change, and they cannot be told apart: SELECT"
            ' all that it has in GROUP BY too, or say mode = "complete"'
        )
    return set(made_of)


def _kind(node: Any) -> str:
    return str(node.nodeName())


def _kinds(plan: Any) -> set[str]:
    return {_kind(plan)}.union(*(_kinds(child) for child in _each(plan.children())))


def _is_aggregate(expression: Any) -> bool:
    return expression.getClass().getSimpleName() == "AggregateExpression" or any(
        map(_is_aggregate, _each(expression.children()))
    )


def _references(expression: Any) -> set[int]:
    """The numbers of the columns that an expression is made of."""
    return {_id(column) for column in _each(expression.references().toSeq())}


def _id(named: Any) -> int:
    return int(named.exprId().id())


def _each(found: Any) -> Iterator[Any]:
    return (found.apply(number) for number in range(found.length()))
