"""Ports are dealt out once, also by processes that know nothing of each other."""

import multiprocessing
import socket
from multiprocessing.pool import Pool

from martlet.testing.ports import free_port


def some(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


def test_no_two_processes_get_the_same_nor_one_the_same_twice() -> None:
    mine = some(20)
    # Forked: each has the memory of this process.
    with Pool(4, context=multiprocessing.get_context("fork")) as pool:
        # Each keeps its block until all have theirs.
        theirs = pool.map(some, [30] * 4, chunksize=1)
    dealt = [mine, *theirs, some(20)]
    ports = [port for each in dealt for port in each]
    assert len(set(ports)) == 160


def test_a_port_that_is_taken_is_passed_over() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port + 1)):
        assert free_port() > port + 1
