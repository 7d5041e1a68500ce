"""The key of a figure's rows: the columns that identify a row when its values change.

The key of a windowed figure is its window and groups.  The key of a SQL query is read from Spark's
plan: rows of an aggregate change and are identified by the columns that they are grouped by; all
other rows are always new.
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
    """Return the columns that identify a row; None if every row is new. Raises JobFailed: rows
    change, but no columns identify them.
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
        keys = _grouped_by(figure, plan, projects)
        output = zip(rows.columns, _each(analyzed.output()), strict=True)
        return [name for name, column in output if _id(column) in keys]
    if "Aggregate" not in _kinds(plan):
        return None
    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    return [name for name, kind in kinds.items() if not kind.startswith(_NO_KEYS)]


def _grouped_by(figure: Figure, aggregate: Any, projects: list[Any]) -> set[int]:
    """Return the ids of the columns that depend only on the grouping columns of an aggregate, given
    the projections of its columns, the last one first.
    """
    group_ids: set[int] = set()
    for expression in _each(aggregate.groupingExpressions()):
        group_ids |= _references(expression)
    made_of = {
        _id(named): _references(named)
        for named in _each(aggregate.aggregateExpressions())
        if not _is_aggregate(named)
    }
    for project in reversed(projects):
        columns = {_id(named): _references(named) for named in _each(project.projectList())}
        made_of = {
            column_id: {column for source in of for column in made_of[source]}
            for column_id, of in columns.items()
            if of <= made_of.keys()
        }
    if not group_ids <= set().union(*made_of.values()):
        raise JobFailed(
            f"figures.{figure.name} has rows that change, and no columns identify them: SELECT all"
            ' columns of GROUP BY too, or say mode = "complete"'
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
    return {_id(column) for column in _each(expression.references().toSeq())}


def _id(named: Any) -> int:
    return int(named.exprId().id())


def _each(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.length()))
