"""The addresses of brokers and lookup daemons: the flags, and the defaults of all commands.

The flags are ``--address`` and ``--lookup``; NSQ's names of them are accepted too. A command line
without either takes them from the environment, and else from the client's config file, which
``martlet config`` writes::

    address = ["mq1:4151", "mq2:4151"]
    lookup = ["lookup1:4161"]
    operator_token_file = "/etc/martlet/token"

The file is ``~/.config/martlet/config.toml``, below ``$XDG_CONFIG_HOME`` where that is set, or the
one that ``$MARTLET_CONFIG`` names.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from martlet.http_requests import (
    TOKEN_SETTING,
    TOKEN_VARIABLE,
    TRUSTED_FLAG,
    TRUSTED_SETTING,
    TRUSTED_VARIABLE,
    TrustedBrokers,
)
from martlet.options.flag import OptionError, option
from martlet.options.options import LogOptions

CONFIG_VARIABLE = "MARTLET_CONFIG"
"""The environment variable that names the config file."""
MAX_CONFIG_BYTES = 1 << 16
_ADDRESS = re.compile(r"(?:https?://)?(?:[^][:/,@\s]+|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):([0-9]{1,5})")

_URL = re.compile(r"https?://[^/:@\s]")


class ClientSetting(NamedTuple):
    """A setting of the client's config file.

    Attributes:
        variable: the environment variable that stands for it.
        is_list: whether it has several values.
        help: what it is.
    """

    variable: str
    is_list: bool
    help: str


SETTINGS: Mapping[str, ClientSetting] = {
    "address": ClientSetting("MARTLET_ADDRESS", True, "HTTP addresses of brokers"),
    "lookup": ClientSetting("MARTLET_LOOKUP", True, "HTTP addresses of lookup daemons"),
    TOKEN_SETTING: ClientSetting(TOKEN_VARIABLE, False, "the file with an operator's token"),
    TRUSTED_SETTING: ClientSetting(
        TRUSTED_VARIABLE, True, "brokers that get the token where a lookup daemon names them"
    ),
}
"""By name, all settings."""


def config_path() -> Path:
    """Return the path of the client's config file. Raises OptionError where there is no home."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return Path(named)
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # The specification has a relative one ignored.
        try:
            base = Path.home() / ".config"
        except RuntimeError:
            raise OptionError(
                "there is no home for the config file: set $HOME, or name the file by"
                f" ${CONFIG_VARIABLE}"
            ) from None
    return base / "martlet" / "config.toml"


def read_config() -> dict[str, tuple[str, ...]]:
    """Read the client's config file; empty where there is none.

    Raises:
        OptionError: it cannot be read, or has a setting that is not known or of another kind.
    """
    path = config_path()
    if str(path) == os.devnull:
        return {}
    try:
        _check_is_file(path)
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise OptionError(f"{path}: it has more than {MAX_CONFIG_BYTES} bytes")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}; ${CONFIG_VARIABLE} names another") from None
    # Imported here, as most brokers and many commands find no file.
    import tomllib

    try:
        document = tomllib.loads(text.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    return {name: check_setting(str(path), name, value) for name, value in document.items()}


def _check_is_file(path: Path) -> None:
    """Raise OptionError where there is a folder, a device, or a pipe, whose readers would wait."""
    if path.exists() and not path.is_file():
        raise OptionError(f"{path} is not a file; ${CONFIG_VARIABLE} names another")


def check_setting(where: str, name: str, value: object) -> tuple[str, ...]:
    """Return the values of a setting. Raises OptionError, which begins with `where`."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise OptionError(f"{where}: there is no setting {name!r}; there are {', '.join(SETTINGS)}")
    values: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if not values or not all(isinstance(value, str) and value for value in values):
        raise OptionError(f"{where}: {name} is {value!r}; write a text, or a list of them")
    if any("\ud800" <= character <= "\udfff" for value in values for character in value):
        raise OptionError(f"{where}: {name} is {value!r}, which is not text in UTF-8")
    if not setting.is_list and len(values) > 1:
        raise OptionError(f"{where}: {name} has {len(values)} values, and takes one")
    if name == TRUSTED_SETTING:
        check_trusted(f"{where}: {name}", values)
    elif setting.is_list:
        for address in values:
            _check_address(f"{where}: {name}", address)
    return tuple(values)


def check_trusted(where: str, values: Sequence[str]) -> None:
    """Check ``--trusted-broker``. Raises OptionError, which begins with `where`."""
    try:
        TrustedBrokers(values)
    except ValueError as error:
        raise OptionError(f"{where}: {error}") from None


def _check_address(where: str, address: str) -> None:
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 1 << 16 or not address.isprintable():
        raise OptionError(f"{where}={address} is not <addr>:<port>, as 127.0.0.1:4151")


@contextmanager
def changing_config() -> Iterator[dict[str, tuple[str, ...]]]:
    """Change the settings of the client's config file: it is written at the end, whole or not at
    all. Another change waits meanwhile.

    Raises OptionError and OSError.
    """
    path = Path(os.path.realpath(config_path()))
    _check_is_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        settings = read_config()
        yield settings
        _write(path, settings)
    finally:
        os.close(folder)


def _write(path: Path, settings: Mapping[str, Sequence[str]]) -> None:
    import tempfile  # Here, as `martlet config` alone writes.

    lines = [f"{name} = {_toml(SETTINGS[name], values)}" for name, values in settings.items()]
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            os.fchmod(file.fileno(), _mode_of(path))
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.remove(beside)
        raise


def _mode_of(path: Path) -> int:
    """Return the permissions of a file; of a new one as the process makes files."""
    with suppress(FileNotFoundError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def _toml(setting: ClientSetting, values: Sequence[str]) -> str:
    # JSON escapes as TOML does, all but one character.
    texts = [json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F") for value in values]
    return f"[{', '.join(texts)}]" if setting.is_list else texts[0]


def in_environment(name: str) -> tuple[str, ...]:
    """Return the values of a setting in the environment; none where it is not set.

    Raises OptionError.
    """
    setting = SETTINGS[name]
    text = os.environ.get(setting.variable, "")
    values = text.split(",") if setting.is_list else [text]
    addresses = [value.strip() for value in values if value.strip()]
    return check_setting(f"${setting.variable}", name, addresses) if addresses else ()


def default_of(name: str) -> tuple[str, ...]:
    """Return the default values of a setting: of the environment, else of the config file.

    Raises OptionError.
    """
    return in_environment(name) or read_config().get(name, ())


def default_addresses() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the default addresses of brokers and of lookup daemons, one of both.

    The environment comes before the file, and brokers before lookup daemons. Raises OptionError.
    """
    for read in (in_environment, lambda name: read_config().get(name, ())):
        if brokers := read("address"):
            return brokers, ()
        if daemons := read("lookup"):
            return (), daemons
    return (), ()


ADDRESS_HELP = "<addr>:<port> of a broker's HTTP; may be given several times"
LOOKUP_HELP = "<addr>:<port> of a lookup daemon's HTTP; may be given several times"
HOW_TO_NAME = (
    "either with --address=HOST:4151 or with --lookup=HOST:4161, or once for all commands with:"
    " martlet config set address HOST:4151"
)
"""The way out, where no addresses are known."""
_FIELDS = ("nsqd_http_addresses", "lookupd_http_addresses")


def address_option(*aliases: str, description: str = ADDRESS_HELP, config_key: str = "") -> Any:
    """``--address``: brokers, by the addresses of their HTTP listeners."""
    return option(
        (), description, name=("address", *aliases), config_key=config_key, section="brokers"
    )


def lookup_option(config_key: str = "") -> Any:
    """``--lookup``: lookup daemons."""
    return option(
        (),
        LOOKUP_HELP,
        name=("lookup", "lookupd-http-address"),
        config_key=config_key,
    )


def _default_trusted() -> tuple[str, ...]:
    # A wrong config file is an error of the commands that need it.
    with suppress(OptionError):
        return default_of(TRUSTED_SETTING)
    return ()


def trusted_brokers_option() -> Any:
    """``--trusted-broker``, by default what the environment says."""
    return option(
        _default_trusted,
        "a network such as 10.0.0.0/8, an IP address, a host name, or a domain such as"
        " .example.org: brokers there get the operator's token although a lookup daemon alone names"
        " them; may be given several times"
        f" (default: ${TRUSTED_VARIABLE})",
        name=TRUSTED_FLAG,
        config_key="trusted_brokers",
    )


@dataclass(frozen=True, kw_only=True)
class AddressOptions(LogOptions):
    """The brokers to ask, by their addresses or by those of lookup daemons that know them."""

    verb: ClassVar[str] = "ask"
    nsqd_http_addresses: tuple[str, ...] = address_option("nsqd-http-address")
    lookupd_http_addresses: tuple[str, ...] = lookup_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        fill_in_addresses(self)
        if self.nsqd_http_addresses and self.lookupd_http_addresses:
            raise OptionError(
                f"say which brokers to {self.verb}: use --nsqd-http-address or"
                " --lookupd-http-address not both; here these are --address and --lookup"
            )
        if bool(self.nsqd_http_addresses) == bool(self.lookupd_http_addresses):
            raise OptionError(f"say which brokers to {self.verb}, {HOW_TO_NAME}")


class _HasAddresses(Protocol):
    nsqd_http_addresses: tuple[str, ...]
    lookupd_http_addresses: tuple[str, ...]


def fill_in_addresses(options: LogOptions) -> None:
    """Set the default addresses in options without any, and check those given. Raises OptionError.

    A URL needs no port: a proxy may have that of its scheme.
    """
    fields = cast(_HasAddresses, options)
    for flag, addresses in (
        ("--address", fields.nsqd_http_addresses),
        ("--lookup", fields.lookupd_http_addresses),
    ):
        for address in addresses:
            if not _URL.match(address):
                _check_address(flag, address)
    if not (fields.nsqd_http_addresses or fields.lookupd_http_addresses):
        # The options are frozen for all but their own start.
        for name, values in zip(_FIELDS, default_addresses(), strict=True):
            object.__setattr__(options, name, values)
