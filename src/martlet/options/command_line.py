"""The arguments of a server command, made from its flags: its command line and its config file.

NSQ's flags are Go's: ``-tcp-address A``, ``-tcp-address=A`` and both with two dashes; a flag that
is true or false stands alone or takes its value after ``=``; any other value may begin with a
dash.  argparse cannot read that, and only lays out the help.

The command line goes before the config file, and the file before the default.  What the command
line overrides in the file is not looked at, but for choices, which nsqd checks at once.  A command
line, file or value that is wrong ends with exit code 2; nsqd ends with 1 where it is a file, or the
value of a flag that it knows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from martlet.options import Flag, FlagKind, OptionError, Options, parse_bool
from martlet.options.flag import Removed

_METAVARS = {
    FlagKind.STRING: "TEXT",
    FlagKind.INT: "N",
    FlagKind.SIZE: "BYTES",
    FlagKind.BOOL: "BOOL",
    FlagKind.DURATION: "DURATION",
    FlagKind.STRINGS: "TEXT",
    FlagKind.FLOAT: "N",
    FlagKind.FLOATS: "N,N",
}
_DEPRECATED = {
    "verbose": "no effect, as in NSQ: use --log-level",
    "worker-id": "no effect, as in NSQ: use --node-id",
}
_HELP = frozenset({"h", "help"})
_WITH_TEXT = frozenset({"config"})
_GENERAL = _HELP | _WITH_TEXT | {"version", *_DEPRECATED}
"""The flags that are no options."""


class ParsedArguments:
    """The command line of a server command.

    Args:
        prog: the command's name, for usage and errors.
        version: what ``--version`` prints.
        description: what ``--help`` says first.
        kind: the options that it sets.
        others: what may stand behind the flags, for usage.
    """

    def __init__(
        self, prog: str, version: str, description: str, kind: type[Options], others: str = ""
    ) -> None:
        self._flags = kind.flags()
        self._flag = kind.flag
        defaults = kind.defaults()
        self._version = version
        self._parser = parser = argparse.ArgumentParser(
            prog=prog,
            usage=f"{prog} [--FLAG=VALUE ...] {others}".rstrip(),
            description=description,
            epilog="A flag has one dash or two; its value comes after = or as the next argument.",
            add_help=False,
        )
        group = parser.add_argument_group("general")
        group.add_argument("-h", "--help", help="print this and exit", action="store_true")
        group.add_argument("--version", help="print the version and exit", action="store_true")
        group.add_argument("--config", metavar="FILE", help="read options from a TOML file")
        for name, text in _DEPRECATED.items():
            shown = text if name != "worker-id" or "node-id" in self._flags else argparse.SUPPRESS
            group.add_argument(f"--{name}", nargs="?", metavar="BOOL", help=shown)
        for flag in self._flags.values():
            if flag.section:
                group = parser.add_argument_group(flag.section)
            group.add_argument(
                f"--{flag.name}",
                dest=flag.name,
                nargs="?" if _means_true(flag) else None,
                metavar=_metavar(flag),
                help=_help(flag, defaults[flag.field]).replace("%", "%%"),
            )

    def read(self, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """The options that a command line and its config file set, and warnings about the file.

        Raises:
            SystemExit: after ``--help`` or ``--version``.
            OptionError: the command line or the config file is wrong.
        """
        texts: dict[str, list[str]] = {}
        values: dict[str, Any] = {}
        for name, text in self._pairs(argv):
            flag = self._flag(name)
            name = flag.name if flag is not None else name
            texts.setdefault(name, []).append(text)
            if flag is not None:
                values[flag.field] = self._value(flag, texts[name])
            elif name not in _WITH_TEXT:
                self._boolean(name, text)
        if self._boolean("version", texts.get("version", ["false"])[-1]):
            self._parser.exit(0, f"{self._version}\n")
        path = texts.get("config", [""])[-1]
        if not path:
            return values, []
        in_file, warnings = self._read_config(path, values)
        return in_file | values, warnings

    def _pairs(self, argv: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The name and text of each flag of a command line."""
        arguments = iter(argv)
        for argument in arguments:
            dashes = len(argument) - len(argument.lstrip("-"))
            name, equals, value = argument[dashes:].partition("=")
            if argument == "--":
                for stray in arguments:
                    self._refuse_stray(stray)
            elif not dashes or argument == "-":
                self._refuse_stray(argument)
            elif dashes > 2 or not self._knows(name):
                self._refuse_unknown(argument)
            elif name in _HELP:
                self._parser.print_help()
                self._parser.exit(0)
            elif equals:
                yield name, value
            elif self._stands_alone(name):
                yield name, "true"
            else:
                following = next(arguments, None)
                if following is None:
                    raise OptionError(f"--{name} needs a value")
                yield name, following

    def _knows(self, name: str) -> bool:
        return self._flag(name) is not None or name in _GENERAL

    def _stands_alone(self, name: str) -> bool:
        if flag := self._flag(name):
            return _means_true(flag)
        return name not in _WITH_TEXT

    def _boolean(self, name: str, text: str) -> bool:
        try:
            return parse_bool(text)
        except ValueError as error:
            raise OptionError(f"--{name}: {error}") from None

    def _value(self, flag: Flag, texts: list[str]) -> Any:
        values = [flag.parse(text) for text in texts]
        if flag.kind is FlagKind.STRINGS:
            return tuple(piece for value in values for piece in value)
        if flag.kind is FlagKind.FLOATS:
            return tuple(sorted((piece for value in values for piece in value), reverse=True))
        return values[-1]

    def _refuse_stray(self, argument: str) -> NoReturn:
        raise OptionError(
            f"{argument!r} belongs to no flag; a true or false flag takes its value after =,"
            " as in --deflate=false"
        )

    def _refuse_unknown(self, argument: str) -> NoReturn:
        name = argument.lstrip("-").partition("=")[0]
        near = _nearest(name.lower().replace("_", "-"), {*self._flags, *_GENERAL})
        hint = f"did you mean --{near}?" if near else "see --help"
        raise OptionError(f"there is no flag {argument.partition('=')[0]}; {hint}")

    def _read_config(
        self, path: str, overridden: Mapping[str, object]
    ) -> tuple[dict[str, Any], list[str]]:
        config = _load(path)
        values: dict[str, Any] = {}
        warnings = self._unknown_keys(path, config)
        for flag in self._flags.values():
            key = next((key for key in flag.config_keys if key in config), None)
            if key is None or (flag.field in overridden and flag.kind is not FlagKind.CHOICE):
                continue
            try:
                values[flag.field] = value = flag.coerce(config[key])
            except OptionError as error:
                raise OptionError(f"{path}: {error}") from None
            if flag.kind is FlagKind.BOOL and not isinstance(config[key], bool | str):
                warnings.append(
                    f"{path}: {key} = {config[key]} is read as {flag.format(value)}, as nsqd"
                    f" reads it; write {key} = {flag.format(value)}"
                )
        return values, warnings

    def _unknown_keys(self, path: str, config: Mapping[str, object]) -> list[str]:
        keys = {key for flag in self._flags.values() for key in flag.config_keys}
        warnings: list[str] = []
        for key in config.keys() - keys - {name.replace("-", "_") for name in _DEPRECATED}:
            flag = self._flags.get(key.lower().replace("_", "-"))
            near = flag.config_key if flag else _nearest(key, keys)
            hint = f"; did you mean {near}?" if near else ""
            warnings.append(f"{path}: there is no option {key}, it is ignored{hint}")
        return sorted(warnings)


def _load(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, encoding="utf-8-sig") as file:
            return tomllib.loads(file.read())
    except OSError as error:
        raise OptionError(f"--config={path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"--config={path} is not TOML: {error}") from None


def _nearest(name: str, names: Iterable[str]) -> str:
    """The name that was probably meant, or nothing."""
    import difflib

    return next(iter(difflib.get_close_matches(name, names, n=1)), "")


def _means_true(flag: Flag) -> bool:
    """Check whether the flag means true when it has no value."""
    return flag.kind is FlagKind.BOOL or any(text == "true" for text, _ in flag.choices)


def _metavar(flag: Flag) -> str:
    if flag.kind is FlagKind.CHOICE:
        return "|".join(
            text for text, value in flag.choices if len(text) > 1 and not isinstance(value, Removed)
        )
    return _METAVARS[flag.kind]


def _help(flag: Flag, default: object) -> str:
    text = flag.help
    if "default" not in text and default not in ("", (), None):
        shown = flag.format(default).replace("\n", "\\n")
        text += f" (default: {shown})"
    if flag.aliases:
        text += f" [also {', '.join(f'--{name}' for name in flag.aliases)}]"
    if flag.instead:
        text += f" [accepted without effect: {flag.instead}]"
    return text
