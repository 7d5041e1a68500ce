"""`martlet replicas`: its options, and what it shows."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from martlet.cli.operations import replicas
from martlet.cli.operations.replicas import show_lines
from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.server.metadata.sqlite_store import SqliteStore
from martlet.testing.ports import free_port

ADDRESSES = {"a": "10.0.0.1:4153", "b": "10.0.0.2:4153", "c": "10.0.0.3:4153"}
FOUND = ReplicaSet.first("a", ADDRESSES, broker="id").elected("a").with_in_sync(frozenset("ab"))


def stored(
    path: Path,
    name: str = "martlet",
    replica_set: ReplicaSet | None = None,
    presences: Mapping[str, Presence] | None = None,
) -> str:
    """Write a store, and return the flag for it."""

    async def write() -> None:
        store = SqliteStore(path, name)
        if replica_set is not None:
            assert await store.swap(replica_set, 0)
        for replica, presence in (presences or {}).items():
            await store.announce(replica, presence)
        await store.close()

    path.touch()
    asyncio.run(write())
    return f"--metadata=sqlite:{path}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replicas.db"


def test_a_replica_set_is_shown() -> None:
    presences = {
        "a": Presence(3, 5000, role="primary", began_s=1000, address="10.0.0.1:4153"),
        "b": Presence(3, 4000, role="standby"),
        "d": Presence(role="waiting", address="10.0.0.4:4153", is_whole=False),
    }
    lines = show_lines(Seen(FOUND, 3, presences), {}, 1300)
    assert lines == [
        "broker id: a is primary of epoch 1 for 5m; 2 of 3 in sync, 2 copies of each message, at"
        " least 2 in sync",
        "",
        "REPLICA  ROLE     IN SYNC  EPOCH     LAG  ADDRESS        PROBLEM",
        "a        primary  yes          3       -  10.0.0.1:4153",
        "b        standby  yes          3  1000 B  10.0.0.2:4153",
        "c        -        no           -       -  10.0.0.3:4153  it is not running, still reads"
        " its log, or does not reach the metadata store",
        "d        waiting  no           0       -  10.0.0.4:4153  it is not in the replica set",
    ]


MADE_BY_A = "there is no replica set yet: a, which --initial-replicas names first, makes it"


@pytest.mark.parametrize(
    ("presences", "head"),
    [
        (
            {name: Presence(role="waiting", initial_primary="a=10.0.0.1:4153") for name in "bc"},
            f"{MADE_BY_A}, and it is not running: start it with `martlet broker --replica-name=a"
            " --replica-address=10.0.0.1:4153`, and with --initial-replicas and the further flags"
            " of the others",
        ),
        (
            {
                "a": Presence(role="waiting"),
                "b": Presence(role="waiting", initial_primary="a=10.0.0.1:4153"),
            },
            f"{MADE_BY_A}, but it runs without that flag: start it again with the"
            " --initial-replicas of the others, or give `martlet replicas create a NAME ...`",
        ),
        (
            {name: Presence(role="waiting", initial_primary="a=10.0.0.1:4153") for name in "ab"},
            MADE_BY_A,
        ),
        (
            {"b": Presence(role="waiting")},
            "there is no replica set yet: create one with `martlet replicas create NAME NAME ...`",
        ),
    ],
)
def test_the_replica_that_is_to_make_the_set_is_named(
    presences: dict[str, Presence], head: str
) -> None:
    """`martlet replicas create` would leave it out."""
    said = {name: replace(presence, problem=head) for name, presence in presences.items()}
    first, *_, last = show_lines(Seen(None, 0, said), {}, 1300)
    assert first == head
    assert "waiting" in last
    assert "there is no replica set" not in last, "it is said once"


@pytest.mark.parametrize(
    ("replica_set", "problem"),
    [
        (FOUND, "the primary does not hear from it, or waits until it has the whole log"),
        (
            FOUND.with_leaving("c"),
            "its removal was begun: finish it with `martlet replicas remove c`, or keep it with"
            " `martlet replicas add c`",
        ),
    ],
    ids=["silent", "half removed"],
)
def test_a_replica_that_is_out_of_sync_says_why(replica_set: ReplicaSet, problem: str) -> None:
    seen = Seen(replica_set, 3, {"c": Presence(3, 4000, role="standby")})
    assert show_lines(seen, {}, 1300)[-1].endswith(problem)


def test_a_replica_that_waits_for_its_set_does_not_listen_yet_and_runs(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    waiting = Presence(role="waiting", address=f"127.0.0.1:{free_port()}", is_whole=False)
    assert replicas.main(["show", stored(path, presences={"b": waiting})]) == 0
    shown = capfd.readouterr().out
    assert "b        waiting" in shown
    assert waiting.address in shown
    assert "listens" not in shown


IN_SYNC = {names: FOUND.with_in_sync(frozenset(names)) for names in ("a", "ab", "abc")}
WITH_D = IN_SYNC["abc"].with_replica("d", "10.0.0.4:4153")
WITHOUT_B = IN_SYNC["a"].without_replica("b")
REFUSES = "warning: the loss of any one replica makes the broker refuse messages: add one, or"
UNTIL_TWO = "warning: messages are refused until 2 replicas are in sync, now it is a"
A_ALONE = (
    "warning: a alone is in sync: until another one is, its loss stops the broker, and may lose"
    " messages"
)


def until_another(names: str) -> str:
    return (
        f"warning: until another replica than {names} is in sync, the loss of one of them makes"
        " the broker refuse messages"
    )


@pytest.mark.parametrize(
    ("after", "copies", "least", "head", "warnings"),
    [
        (IN_SYNC["abc"], 2, 1, "set; 3 replicas, 2 copies, at least 2 -> 1 in sync", []),
        (IN_SYNC["abc"], 2, 2, "set; 3 replicas, 2 copies, at least 2 in sync", []),
        (
            *(IN_SYNC["abc"], 3, 3, "set; 3 replicas, 2 -> 3 copies, at least 2 -> 3 in sync"),
            [f"{REFUSES} `martlet replicas set --min-in-sync=2`"],
        ),
        (
            *(IN_SYNC["ab"], 2, 2, "set; 3 replicas, 2 copies, at least 2 in sync"),
            [until_another("a, b")],
        ),
        (IN_SYNC["a"], 2, 1, "set; 3 replicas, 2 copies, at least 2 -> 1 in sync", [A_ALONE]),
        (IN_SYNC["a"], 2, 2, "set; 3 replicas, 2 copies, at least 2 in sync", [UNTIL_TWO]),
        (
            *(WITH_D, 3, 3, "set; 3 -> 4 replicas, 2 -> 3 copies, at least 2 -> 3 in sync"),
            [until_another("a, b, c")],
        ),
        (WITHOUT_B, 2, 2, "set; 3 -> 2 replicas, 2 copies, at least 2 in sync", [UNTIL_TWO]),
    ],
)
def test_a_change_says_what_changes_and_when_messages_are_refused(
    after: ReplicaSet, copies: int, least: int, head: str, warnings: list[str]
) -> None:
    after = replace(after, wanted_copies=copies, min_in_sync=least)
    assert replicas.changed_lines("set", FOUND, after) == [head, *warnings]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            "a",
            [
                "a becomes the primary; 1 replica, 1 copy, at least 1 in sync",
                "warning: a is the only replica: its loss stops the broker, and may lose messages;"
                " add another one with `martlet replicas add`",
            ],
        ),
        (
            "abc",
            [
                "a becomes the primary, and takes messages alone: once others are in sync, give"
                " `martlet replicas set --min-in-sync=2`; 3 replicas, 2 copies, at least 2 -> 1 in"
                " sync",
                A_ALONE,
            ],
        ),
    ],
)
def test_a_forced_primary_says_what_is_left_to_do(
    names: str, said: list[str], path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = ReplicaSet.first("a", {name: ADDRESSES[name] for name in names}, broker="id")
    before = before.elected("a").with_in_sync(frozenset(names))
    presences = {"a": Presence(1, role="standby", broker="id")}
    metadata = stored(path, replica_set=before, presences=presences)
    assert replicas.main(["force", "a", "--accept-loss", metadata]) == 0
    assert capfd.readouterr().out.splitlines() == said


def test_the_sets_that_there_are_are_named_where_another_one_is_asked_for(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    metadata = stored(path, "broker-0", FOUND)
    assert replicas.main(["show", metadata, "--replica-set=WRONG"]) == 1
    assert "there is no replica set WRONG; there is broker-0" in capfd.readouterr().err


def test_a_replica_that_was_just_killed_is_not_shown_as_in_sync(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its presence lasts for 3 s, and the set has it in sync until the primary misses it."""
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.socket() as killed:
        killed.bind(("127.0.0.1", 0))  # Nothing listens there.
        addresses = {
            name: f"127.0.0.1:{replica.getsockname()[1]}"
            for name, replica in (("a", alive), ("b", killed))
        }
        both = ReplicaSet.first("a", addresses, broker="id").elected("a")
        presences = {
            name: Presence(1, role=role, address=addresses[name], broker="id")
            for name, role in (("a", "primary"), ("b", "standby"))
        }
        metadata = stored(path, "martlet", both.with_in_sync(frozenset("ab")), presences)
        assert replicas.main(["show", metadata]) == 0
    shown = capfd.readouterr().out
    assert "2 of 2 in sync (b not reachable), 2 copies of each message" in shown
    why = f"nothing listens at {addresses['b']}: it is just starting, or has just ended"
    assert re.search(f"b +standby +not reachable .* {why}", shown)
    assert re.search("a +primary +yes ", shown)


def test_the_only_set_of_a_store_needs_no_name(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    metadata = stored(path, "broker-0", FOUND)
    assert replicas.main(["show", metadata, "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["primary"], shown["epoch"]) == ("a", 1)
    assert shown["replicas"][2] == {
        "replica": "c",
        "address": "10.0.0.3:4153",
        "is_member": True,
        "is_in_sync": False,
        "is_running": False,
    }
    stored(path, "broker-1", FOUND)
    assert replicas.main([metadata]) == 1
    assert "there are several replica sets, broker-0, broker-1" in capfd.readouterr().err
    assert replicas.main([metadata, "--replica-set=broker-1"]) == 0


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("sqlite:missing.db", "there is no such file: give the path that the replicas"),
        ("zookeeper:10.0.0.1:2181", "is no metadata store: it is etcd:HOST:PORT"),
        ("etcd:127.0.0.1:1", "etcd did not answer"),
    ],
)
def test_a_store_that_is_not_there_is_named(
    metadata: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert replicas.main(["show", f"--metadata={metadata}"]) == 1
    assert why in capfd.readouterr().err


def test_replicas_that_do_not_run_cannot_make_a_set(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path.touch()
    arguments = ["create", "a", "b", f"--metadata=sqlite:{path}", "--timeout=200ms"]
    assert replicas.main(arguments) == 1
    assert (
        "a, b are not running in this replica set: start each with `martlet broker"
        in capfd.readouterr().err
    )
