"""The arguments of a server command: made from its flags, and read in Go's forms too.

NSQ's flags are Go's: ``-tcp-address A``, ``-tcp-address=A`` and both with two dashes; a flag that
is true or false stands alone or takes its value after ``=``.  Each form is brought to
``--name=value`` before argparse sees it, so a value may begin with a dash, as it may in Go.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from martlet.options import Flag, Kind, OptionError

_METAVARS = {
    Kind.STRING: "TEXT",
    Kind.INT: "N",
    Kind.SIZE: "BYTES",
    Kind.BOOL: "BOOL",
    Kind.DURATION: "DURATION",
    Kind.STRINGS: "TEXT",
    Kind.FLOATS: "N,N",
}
_DEPRECATED = {
    "verbose": "no effect, as in nsqd: use --log-level",
    "worker-id": "no effect, as in nsqd: use --node-id",
}


class Arguments:
    """The command line of a server command.

    Args:
        prog: the command's name, for usage and errors.
        version: what ``--version`` prints.
        description: what ``--help`` says first.
        flags: the command's flags by name.
        defaults: what each option is when nobody sets it, by field.
    """

    def __init__(
        self,
        prog: str,
        version: str,
        description: str,
        flags: Mapping[str, Flag],
        defaults: Mapping[str, object],
    ) -> None:
        self._flags = flags
        self._parser = parser = argparse.ArgumentParser(
            prog=prog,
            usage=f"{prog} [--FLAG=VALUE ...]",
            description=description,
            epilog="A flag has one dash or two; its value comes after = or as the next argument.",
            allow_abbrev=False,
            add_help=False,
        )
        group = parser.add_argument_group("general")
        group.add_argument("-h", "-help", "--help", action="help", help="print this and exit")
        group.add_argument("--version", action="version", version=version, help="print the version")
        group.add_argument("--config", metavar="FILE", help="read options from a TOML file")
        for name, text in _DEPRECATED.items():
            group.add_argument(f"--{name}", nargs="?", metavar="BOOL", help=text)
        for flag in flags.values():
            if flag.section:
                group = parser.add_argument_group(flag.section)
            group.add_argument(
                f"--{flag.name}",
                dest=flag.name,
                action="append",
                nargs="?" if _stands_alone(flag) else None,
                metavar=_metavar(flag),
                help=_help(flag, defaults[flag.field]).replace("%", "%%"),
            )

    def read(self, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """The options that a command line and its config file set, and warnings about the file.

        What the command line says goes before what the file says.

        Raises:
            SystemExit: after ``--help`` or ``--version``; with 2 when the command line is wrong.
            OptionError: the config file cannot be read, or a value in it is wrong.
        """
        parsed, rest = self._parser.parse_known_args(self._normalise(argv))
        if rest:
            self._refuse(rest[0])
        values: dict[str, Any] = {}
        warnings: list[str] = []
        if parsed.config:
            config = _load(parsed.config)
            values = {
                flag.field: flag.coerce(config[flag.config_key])
                for flag in self._flags.values()
                if flag.config_key in config
            }
            warnings = self._unknown_keys(parsed.config, config)
        for name, texts in vars(parsed).items():
            if name in self._flags and texts is not None:
                values[self._flags[name].field] = self._value(self._flags[name], texts)
        return values, warnings

    def fail(self, message: str) -> NoReturn:
        """Say what is wrong with the command line and exit with 2."""
        self._parser.exit(2, f"{self._parser.prog}: {message}\n")

    def _value(self, flag: Flag, texts: list[str]) -> Any:
        try:
            values = [flag.parse(text) for text in texts]
        except OptionError as error:
            self.fail(str(error))
        if flag.kind is Kind.STRINGS:
            return tuple(piece for value in values for piece in value)
        if flag.kind is Kind.FLOATS:
            return tuple(sorted((piece for value in values for piece in value), reverse=True))
        return values[-1]

    def _normalise(self, argv: Sequence[str]) -> list[str]:
        """Bring every flag to ``--name=value``."""
        result: list[str] = []
        arguments = iter(argv)
        for argument in arguments:
            name, equals, value = argument.lstrip("-").partition("=")
            dashes = len(argument) - len(argument.lstrip("-"))
            flag = self._flags.get(name)
            if dashes not in (1, 2) or (
                flag is None and name != "config" and name not in _DEPRECATED
            ):
                result.append(f"--{name}" if argument == "-version" else argument)
            elif equals:
                result.append(f"--{name}={value}")
            elif name in _DEPRECATED or (flag and _stands_alone(flag)):
                result.append(f"--{name}=true")
            else:
                following = next(arguments, None)
                if following is None:
                    self.fail(f"--{name} needs a value")
                result.append(f"--{name}={following}")
        return result

    def _refuse(self, argument: str) -> NoReturn:
        name = argument.lstrip("-").partition("=")[0]
        if not argument.startswith("-"):
            self.fail(
                f"{argument!r} belongs to no flag; a true or false flag takes its value after =,"
                " as in --deflate=false"
            )
        near = _nearest(name, self._flags)
        hint = f"did you mean --{near}?" if near else "see --help"
        self.fail(f"there is no flag --{name}; {hint}")

    def _unknown_keys(self, path: str, config: Mapping[str, object]) -> list[str]:
        known = {flag.config_key for flag in self._flags.values()}
        warnings: list[str] = []
        for key in config.keys() - known - {name.replace("-", "_") for name in _DEPRECATED}:
            near = _nearest(key, known)
            hint = f"; did you mean {near}?" if near else ""
            warnings.append(f"{path}: there is no option {key}, it is ignored{hint}")
        return sorted(warnings)


def _load(path: str) -> dict[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise OptionError(f"--config={path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"--config={path} is not TOML: {error}") from None


def _nearest(name: str, names: Iterable[str]) -> str:
    """The name that was probably meant, or nothing."""
    import difflib

    return next(iter(difflib.get_close_matches(name, names, n=1)), "")


def _stands_alone(flag: Flag) -> bool:
    """Whether the flag means true when it has no value."""
    return flag.kind is Kind.BOOL or any(text == "true" for text, _ in flag.choices)


def _metavar(flag: Flag) -> str:
    if flag.kind is Kind.CHOICE:
        return "|".join(text for text, _ in flag.choices if len(text) > 1)
    return _METAVARS[flag.kind]


def _help(flag: Flag, default: object) -> str:
    text = flag.help
    if "default" not in text and default not in ("", ()):
        text += f" (default: {flag.format(default)})"
    if flag.instead:
        text += f" [accepted without effect: {flag.instead}]"
    if flag.missing:
        text += f" [refused: {flag.missing}]"
    return text
