"""The `martlet` command: run each sub-command in its module, which is imported only then.

So `martlet --help` answers at once, `martlet broker` never imports Spark, and a command whose extra
is not installed affects no other.
"""

import gc
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from martlet import __version__
from martlet.cli import pipe
from martlet.text import how_to_install


class Command(NamedTuple):
    """A sub-command: the module whose `main(argv)` runs it, and a line of help."""

    module: str
    help: str
    extra: str | None = None
    """The extra of the package with the command's further dependencies."""
    is_in_checkout: bool = False
    """Whether the module is outside of the package: in the repository, beside `src`."""
    actions: tuple[str, ...] = ()
    """The words that may stand first behind the command, for completion."""


GROUPS: dict[str, dict[str, Command]] = {
    "run servers": {
        "up": Command(
            "martlet.cli.servers.up", "run brokers, a lookup daemon and the page on this machine"
        ),
        "broker": Command("martlet.cli.servers.broker", "run a broker; takes nsqd's flags"),
        "lookup": Command(
            "martlet.cli.servers.lookup", "run a lookup daemon; takes nsqlookupd's flags"
        ),
        "admin": Command(
            "martlet.cli.servers.admin",
            "show brokers in a browser; takes nsqadmin's flags",
            extra="admin",
        ),
    },
    "move messages": {
        "pub": Command(
            "martlet.cli.nsq_tools.pub", "publish a pipe or files; takes to_nsq's flags"
        ),
        "tail": Command(
            "martlet.cli.nsq_tools.tail", "show messages as they arrive; takes nsq_tail's flags"
        ),
        "to-file": Command(
            "martlet.cli.nsq_tools.to_file", "write topics to files; takes nsq_to_file's flags"
        ),
        "to-http": Command(
            "martlet.cli.nsq_tools.to_http", "send topics to URLs; takes nsq_to_http's flags"
        ),
        "relay": Command(
            "martlet.cli.nsq_tools.relay",
            "publish topics to other brokers; takes nsq_to_nsq's flags",
        ),
    },
    "look": {
        "stat": Command(
            "martlet.cli.nsq_tools.stat", "show counts as they change; takes nsq_stat's flags"
        ),
        "nodes": Command(
            "martlet.cli.operations.nodes", "list the brokers that lookup daemons know"
        ),
        "health": Command("martlet.cli.operations.health", "check brokers and lookup daemons"),
        "peek": Command(
            "martlet.cli.operations.peek",
            "show the unfinished messages of a channel, without consuming any",
        ),
        "trace": Command(
            "martlet.cli.operations.trace", "show the history of a message, by its id or a key"
        ),
    },
    "change": {
        "topic": Command(
            "martlet.cli.operations.topic",
            "list, create, pause, empty, delete or configure topics",
            actions=("list", "create", "pause", "unpause", "empty", "delete", "configure"),
        ),
        "channel": Command(
            "martlet.cli.operations.channel",
            "list, create, pause, empty, delete or configure channels",
            actions=("list", "create", "pause", "unpause", "empty", "delete", "configure"),
        ),
        "groups": Command(
            "martlet.cli.operations.groups",
            "list, describe or reset consumer groups",
            actions=("list", "describe", "reset"),
        ),
        "replay": Command(
            "martlet.cli.operations.replay", "rewind a channel to an offset or a time"
        ),
        "dead-letters": Command(
            "martlet.cli.operations.dead_letters",
            "list, show, redrive or purge dead letters",
            actions=("list", "show", "redrive", "purge"),
        ),
        "delayed": Command(
            "martlet.cli.operations.delayed",
            "list or cancel delayed messages",
            actions=("list", "cancel"),
        ),
        "transactions": Command(
            "martlet.cli.operations.transactions",
            "list, show, commit or roll back transactions",
            actions=("list", "show", "commit", "rollback"),
        ),
        "replicas": Command(
            "martlet.cli.operations.replicas",
            "show or change the replicas of a broker, or the primary",
            actions=(
                *("show", "create", "add", "remove", "hand-over", "set", "force", "recreate"),
            ),
        ),
    },
    "Spark": {
        "pipeline": Command(
            "martlet.cli.pipeline",
            "jobs on topics that run on Spark",
            "spark",
            actions=("archive", "audit", "dead-letters", "replay", "report"),
        ),
    },
    "this machine": {
        "config": Command(
            "martlet.cli.config",
            "show or set the default addresses of all commands",
            actions=("show", "set", "unset"),
        ),
        "completion": Command(
            "martlet.cli.completion",
            "complete commands and flags in bash, zsh or fish",
            actions=("bash", "zsh", "fish"),
        ),
        "log": Command(
            "martlet.cli.log",
            "verify or dump the commit log of a data folder",
            actions=("verify", "dump"),
        ),
        "import-nsqd": Command("martlet.cli.import_nsqd", "import a stopped nsqd's data folder"),
        "bench": Command(
            "bench.main", "measure a broker, beside another NSQ server", "cli", is_in_checkout=True
        ),
        "demo": Command(
            "examples.flights.main",
            "the main job on real data, with a kill -9",
            "demo",
            is_in_checkout=True,
        ),
    },
}
"""The commands, by what they are for."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
_EXAMPLES = """examples:
  martlet up                                            a broker, a lookup daemon, a page
  martlet config set address 127.0.0.1:4151             the default of all commands below
  echo hello | martlet pub --topic=greetings
  martlet tail --topic=greetings
  martlet topic list"""


def usage() -> str:
    """Return what `martlet --help` prints."""
    width = max(map(len, COMMANDS))
    lines: list[str] = []
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {name:<{width}}  {command.help}" for name, command in commands.items()]
    return "\n".join(
        [
            "usage: martlet COMMAND [ARGUMENTS]",
            "       martlet COMMAND --help",
            "       martlet --version",
            "",
            "A message broker that every NSQ client uses unchanged, and that loses nothing",
            "it answered OK.",
            *lines,
            "",
            _EXAMPLES,
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; return the exit code of the process.

    `argv` is `sys.argv[1:]` by default. An unknown or missing command is reported on standard error
    and gives 2. If the output's reader closes the pipe, as in ``| head -1``, the command ends
    silently, and the result is 141.
    """
    try:
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not pipe.is_closed():
            raise
        pipe.discard()
        return pipe.EXIT_CODE


def _main(arguments: list[str]) -> int:
    if not arguments:
        print(usage(), file=sys.stderr)
        return 2
    name, *rest = arguments
    if name in ("--help", "-help", "-h", "help"):
        print(usage())
        return 0
    if name in ("--version", "-version", "version"):
        print(f"martlet {__version__}")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        print(_unknown(name), file=sys.stderr)
        return 2
    return _run(name, command, rest)


def _run(name: str, command: Command, arguments: list[str]) -> int:
    if command.is_in_checkout and not _add_checkout(command.module):
        print(
            f"martlet {name}: is in Martlet's repository and not in the installed package;"
            f" run ./run {name} in a checkout",
            file=sys.stderr,
        )
        return 1
    # numpy's linear algebra, which Martlet does not use, starts threads that spin for a moment.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with not_collected():
            module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        # A missing module of Martlet itself is a bug, and is reported as one.
        if command.extra is None or error.name is None or error.name.startswith("martlet"):
            raise
        print(
            f"martlet {name}: needs the package {error.name}, which is not installed; "
            f"get it with: {how_to_install(command.extra)}",
            file=sys.stderr,
        )
        return 1
    code: int = module.main(arguments)
    return code


@contextmanager
def not_collected() -> Iterator[None]:
    """Look for no garbage meanwhile: what imports and a start make stays."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _add_checkout(module: str) -> bool:
    """Make the checkout's own modules importable, if this is a checkout with the module."""
    folder = os.path.abspath(__file__)
    for _ in range(4):
        folder = os.path.dirname(folder)
    if not os.path.isfile(os.path.join(folder, *module.split(".")) + ".py"):
        return False
    sys.path.insert(0, folder)
    return True


def _unknown(name: str) -> str:
    import difflib  # Here, as a right command line does without.

    what = "option" if name.startswith("-") else "command"
    near = difflib.get_close_matches(name, [*COMMANDS, "--help", "--version"], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(COMMANDS)}."
    return f"martlet: no {what} {name!r}; {hint} See martlet --help."


if __name__ == "__main__":
    sys.exit(main())
