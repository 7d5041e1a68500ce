"""Ports are dealt out once, also by processes that know nothing of each other."""

import socket
import subprocess
import sys
from contextlib import ExitStack

from martlet.testing.ports import _BLOCK, free_port

FORKS = """
import os, sys
from martlet.testing.ports import free_port

def some(count):
    line = " ".join(str(free_port()) for _ in range(count))
    os.write(1, f"{line}\\n".encode())  # in one piece, whatever the other writes

some(10)
os.fork()
some(10)
sys.stdin.read()
"""


def test_no_two_processes_get_the_same_nor_one_the_same_twice() -> None:
    ports = [free_port() for _ in range(10)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", FORKS],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            for _ in range(3):  # two of the process, and one of its child
                ports += map(int, process.stdout.readline().split())
        ports += [free_port() for _ in range(10)]
        # They and their children keep their blocks until here.
        for process in processes:
            process.communicate()
    assert len(ports) == 20 + 3 * 30
    assert len(set(ports)) == len(ports)


def test_a_port_that_is_taken_is_passed_over() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        # More than a block has, so the turn comes to each of its ports.
        assert taken not in [free_port() for _ in range(_BLOCK)]
