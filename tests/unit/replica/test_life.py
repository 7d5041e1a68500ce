"""Which process a replica's name is."""

from __future__ import annotations

import pytest

from martlet.replica.note import Entitlement, Life, entitlement

NEW = Life(0, "", "folder")
OWN = Life(5, "process", "folder")
NEXT = Life(8, "next", "folder")
COPY = Life(9, "another", "folder")
OTHER = Life(9, "another", "another folder")
ORDERED = Life(9, "another")


@pytest.mark.parametrize(
    ("named", "own", "runs", "instance", "expected"),
    [
        pytest.param(None, NEW, (), "process", Entitlement.REPLACES, id="nobody"),
        pytest.param(None, OWN, (), "process", Entitlement.SUCCEEDS, id="nobody, by an old state"),
        pytest.param(OWN, OWN, (), "process", Entitlement.NAMED, id="itself"),
        pytest.param(OWN, NEW, ("process",), "process", Entitlement.NAMED, id="seen first"),
        pytest.param(
            Life(5, "process"), NEW, (), "process", Entitlement.SUCCEEDS, id="by an operator"
        ),
        pytest.param(OWN, OWN, (), "again", Entitlement.SUCCEEDS, id="the process before"),
        pytest.param(
            NEXT, OWN, ("next",), "again", Entitlement.SUCCEEDS, id="a claim without an answer"
        ),
        pytest.param(
            Life(3, "old", "old"), OWN, (), "process", Entitlement.SUCCEEDS, id="old state"
        ),
        pytest.param(OTHER, NEW, (), "process", Entitlement.REPLACES, id="a new folder"),
        pytest.param(COPY, OWN, (), "again", Entitlement.REPLACES, id="a copy ran meanwhile"),
        pytest.param(COPY, OWN, (), "process", Entitlement.REPLACED, id="a copy runs"),
        pytest.param(
            COPY, OWN, ("next",), "process", Entitlement.REPLACED, id="a copy runs, and a claim"
        ),
        pytest.param(OTHER, OWN, (), "process", Entitlement.REPLACED, id="another folder"),
        pytest.param(OTHER, OWN, (), "again", Entitlement.REPLACED, id="another folder, new start"),
        pytest.param(ORDERED, OWN, (), "process", Entitlement.REPLACED, id="added again elsewhere"),
    ],
)
def test_a_name_is_one_process(
    named: Life | None, own: Life, runs: tuple[str, ...], instance: str, expected: Entitlement
) -> None:
    assert entitlement(named, own, runs, instance, has_pledged=False) is expected


def test_a_folder_of_an_earlier_version_may_lack_what_another_process_acknowledged() -> None:
    assert entitlement(OTHER, NEW, (), "process", has_pledged=True) is Entitlement.REPLACES
    assert entitlement(None, NEW, (), "process", has_pledged=True) is Entitlement.SUCCEEDS
