"""HTTP at a standby."""

from __future__ import annotations

from martlet.server.http.request import Request, Routes
from martlet.server.replication.standby_http import StandbyRoutes


async def own(request: Request) -> object:
    return "own"


async def forward(request: Request) -> object:
    return "forwarded"


def test_a_standby_answers_its_own_and_those_of_the_node_that_runs_then() -> None:
    of_node: Routes = {}
    routes = StandbyRoutes({"/ping": {"GET": own}}, lambda: of_node, forward)
    assert routes["/ping"]["GET"] is own
    assert routes["/log/topics"]["GET"] is forward
    of_node = {"/log/topics": {"GET": own}}
    assert routes["/log/topics"]["GET"] is own
    assert routes["/pub"]["POST"] is forward
    assert (list(routes), len(routes)) == (["/ping", "/log/topics"], 2)
