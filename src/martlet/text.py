"""Values as text: durations and sizes as people write them (``1m30s``, ``64MiB``), counts in words,
texts of strangers for pages, and JSON as Go's encoder writes it for answers that stand in for
those of NSQ's servers.

A duration is what Go's ``time.ParseDuration`` takes, because flags and config files of NSQ are
written that way: a sum of decimal numbers, each with its unit.  In Martlet a duration is a whole
number of nanoseconds, and its name ends in ``_ns``.
"""

from __future__ import annotations

import json
import re
import unicodedata

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS

MAX_NS = 2**63 - 1
"""The longest duration: 64 bits with a sign, about 292 years."""

_UNITS_NS = {
    "ns": 1,
    "us": MICROSECOND_NS,
    "\u00b5s": MICROSECOND_NS,
    "\u03bcs": MICROSECOND_NS,
    "ms": MILLISECOND_NS,
    "s": SECOND_NS,
    "m": MINUTE_NS,
    "h": HOUR_NS,
}
_TERM = re.compile(r"(?:(\d+)\.?(\d*)|\.(\d+))([^\d.]*)", re.ASCII)

_SIZES = {"": 1, "b": 1}
for _exponent, _letter in enumerate("kmgt", start=1):
    _SIZES[_letter] = _SIZES[_letter + "ib"] = 1024**_exponent
    _SIZES[_letter + "b"] = 1000**_exponent
_SIZE = re.compile(r"(?:(\d++)\.?(\d*+)|\.(\d++))\s*([a-z]*)", re.ASCII)
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_ESCAPED = {letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
"""Letters that mean something in HTML and JavaScript."""


def parse_duration(text: str) -> int:
    """Parse a duration such as ``1h30m``, ``1.5s``, ``-2ms`` or ``0`` into nanoseconds.

    Raises:
        ValueError: the text says what is wrong and shows valid forms.
    """
    negative, rest = text[:1] == "-", text[text[:1] in ("-", "+") :]
    if rest == "0":
        return 0
    total = 0
    at = 0
    while at < len(rest) or not at:
        term = _TERM.match(rest, at)
        if term is None:
            raise ValueError(f"{text!r} is not a duration; write one like 1m30s or 100ms")
        unit = term[4]
        if not unit:
            raise ValueError(f"{text!r} has no unit; write {text}s or {text}ms")
        if unit not in _UNITS_NS:
            hours = {"d": 24, "w": 168}.get(unit[:1].lower())
            way_out = f"; the longest is h: {hours}h for each" if hours else ""
            raise ValueError(
                f"{text!r} has the unknown unit {unit!r}; use ns, us, ms, s, m or h{way_out}"
            )
        total += _times(term, _UNITS_NS[unit])[0]
        at = term.end()
    if total > MAX_NS:
        raise ValueError(f"{text!r} is too long; the longest duration is about 2562047h")
    return -total if negative else total


def format_duration(duration_ns: int) -> str:
    """Format a duration as Go prints it: ``1m30s``, ``100ms``, ``1.5µs``, ``0s``."""
    sign, left = ("-", -duration_ns) if duration_ns < 0 else ("", duration_ns)
    if left < SECOND_NS:
        for unit, unit_ns in (
            ("ns", 1),
            ("\u00b5s", MICROSECOND_NS),
            ("ms", MILLISECOND_NS),
        ):
            if left < 1000 * unit_ns:
                return "0s" if not left else f"{sign}{_decimal(left, unit_ns)}{unit}"
    hours, left = divmod(left, HOUR_NS)
    minutes, left = divmod(left, MINUTE_NS)
    text = f"{_decimal(left, SECOND_NS)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _decimal(amount: int, unit: int) -> str:
    units, rest = divmod(amount, unit)
    if not rest:
        return str(units)
    return f"{units}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")


def parse_size(text: str) -> int:
    """Parse a size such as ``1048576``, ``64MiB``, ``64M`` (also binary) or ``5MB`` into bytes.

    Raises:
        ValueError: the text says what is wrong and shows valid forms.
    """
    match = _SIZE.fullmatch(text.strip().lower().replace("_", ""))
    if match is None or match[4] not in _SIZES:
        raise ValueError(f"{text!r} is not a size; write bytes, or 64KiB, 100MiB, 2GiB")
    size, rest = _times(match, _SIZES[match[4]])
    if rest:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return size


def readable_size(count: float) -> str:
    """Format a number of bytes in the largest fitting unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _times(number: re.Match[str], unit: int) -> tuple[int, int]:
    """Multiply a decimal number by a unit. Returns the integer, and the rest of a fraction."""
    integer, decimals = number[1] or "0", number[2] or number[3] or ""
    return divmod(int(integer + decimals) * unit, int("1" + "0" * len(decimals)))


def counted(count: int, noun: str, plural: str = "", *, form: str = "") -> str:
    """Format a count with its noun, such as ``1 queue`` and ``3 queues``.

    Args:
        plural: for any other count; by default the noun and an s.
        form: the number's format, such as ``,`` for ``1,000 messages``.
    """
    return f"{count:{form}} {noun if count == 1 else plural or noun + 's'}"


def visible(text: str) -> str:
    r"""Return a text with control and bidirectional characters as ``\u202e``: what a stranger wrote
    must not change how the page around it reads.
    """
    return "".join(
        character if character in "\n\t" or not _is_hidden(character) else _escape(character)
        for character in text
    )


def shown_value(value: object, max_characters: int = 40) -> str:
    """Return the beginning of a value of JSON, for the refusal of it. Of a list or an object only
    the size is shown: it may be nested too deeply for repr.
    """
    if isinstance(value, list | tuple | dict):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    # JSON can hold half a pair of surrogates, which an answer cannot.
    shown = str(value).encode("utf-8", "replace").decode()[:max_characters]
    return repr(shown) if isinstance(value, str) else shown


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def go_json(value: object) -> str:
    """Return compact JSON, harmless in a page; half of a surrogate pair becomes U+FFFD."""
    text = _encode(value)
    for letter, escaped in _ESCAPED.items():
        text = text.replace(letter, escaped)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def how_to_install(extra: str) -> str:
    """Return the remedy for an error about a missing extra: a working command, and where to run it.

    There is no release on the package index yet, where the name may be another project's.
    """
    return f"pip install '.[{extra}]' in a clone of Martlet's repository"
