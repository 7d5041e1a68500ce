"""The filter's language: RocketMQ's subset of SQL92, and AMQP's topic patterns.

::

    filter   = all { OR all }
    all      = operand { AND operand }
    operand  = NOT operand | ( filter ) | TRUE | FALSE | test
    test     = property compare value | value compare property
             | property [NOT] BETWEEN number AND number
             | property [NOT] IN ( value { , value } )      all texts, or all numbers
             | property [NOT] ( STARTSWITH | ENDSWITH | CONTAINS | MATCHES ) text
             | property IS [NOT] NULL
    compare  = = | <> | != | < | <= | > | >=               the last four with a number
    value    = number | text | TRUE | FALSE                TRUE and FALSE with = and <> alone
    number   = 3 | -3.5 | 1e6
    text     = 'in single quotes, with a ''quote'' in it'
    property = TAGS | ORDER_KEY | the name of a header, such as region or x-region,
               or "in double quotes", such as "order" or "my header"

Keywords may have letters of any case, names may not. `TAGS` is the message's tag; ``"TAGS"`` is a
header of that name. `martlet.properties.filter.conditions` has what each test means.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from martlet.properties.filter import MAX_LENGTH
from martlet.properties.filter.columns import (
    MAX_NUMBER_BYTES,
    TAG,
    Property,
    number_of,
)
from martlet.properties.filter.conditions import (
    MAX_TOPIC_BYTES,
    And,
    Compared,
    Condition,
    Constant,
    Contains,
    EndsWith,
    IsBoolean,
    IsNull,
    IsOneOf,
    Matches,
    Not,
    StartsWith,
    either,
)
from martlet.properties.model import MAX_NAME_BYTES, Field

MAX_DEPTH = 32
"""How deeply parentheses and NOTs may be nested."""
MAX_TERMS = 256
"""The maximum number of tests and of values, together."""

_SHOWN = 24
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number> [+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+ (?![\w$.]) )
      | (?P<text>   '(?:[^']|'')*' )
      | (?P<quoted> "(?:[^"]|"")*" )
      | (?P<word>   [A-Za-z_$][A-Za-z0-9_$.-]* )
      | (?P<sign>   <>|!=|<=|>=|[=<>(),] )
      | (?P<end>    \Z )
    )""",
    re.VERBOSE,
)
_KEYWORDS = frozenset(
    [
        "AND",
        "OR",
        "NOT",
        "BETWEEN",
        "IN",
        "IS",
        "NULL",
        "TRUE",
        "FALSE",
        "STARTSWITH",
        "ENDSWITH",
        "CONTAINS",
        "MATCHES",
        "LIKE",
    ]
)
_OWN = {"TAGS": TAG, "ORDER_KEY": Property(Field.ORDER_KEY)}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_TESTS: dict[str, Callable[[Property, bytes], Condition]] = {
    "STARTSWITH": StartsWith, "ENDSWITH": EndsWith, "CONTAINS": Contains, "MATCHES": Matches,
}  # fmt: skip
_Value = bytes | int | float | bool


class BadFilter(ValueError):
    """A filter that cannot be read; the text says what is wrong, and where: at which `position`."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        near = text[position : position + _SHOWN]
        where = f"character {position + 1}, {near!r}" if near else "its end"
        super().__init__(f"the filter is wrong at {where}: {problem}")
        self.position = position


class _Token(NamedTuple):
    kind: str
    text: str
    """A keyword in capital letters; everything else as it is written."""
    at: int


@lru_cache(maxsize=256)
def parse(text: str) -> Condition:
    """Read a filter. Raises BadFilter."""
    if len(text) > MAX_LENGTH:
        raise BadFilter(
            text, MAX_LENGTH, f"it has {len(text)} characters, the maximum is {MAX_LENGTH}"
        )
    return _Parser(text).read()


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise BadFilter(text, at, _unreadable(text[at]))
        kind = match.lastgroup
        assert kind is not None
        word = match[kind]
        if kind == "word" and word.upper() in _KEYWORDS:
            kind, word = "keyword", word.upper()
        tokens.append(_Token(kind, word, match.start(match.lastgroup or 0)))
        at = match.end()
    return tokens


def _unreadable(letter: str) -> str:
    if letter == "'":
        return "the text has no ' at its end"
    if letter == '"':
        return 'the name has no " at its end'
    if letter.isdigit():
        return "that is no number; a name that begins with a digit needs double quotes"
    if letter in "+-.":
        return "that is no number"
    if letter.isalpha():
        return "a name with such a letter needs double quotes, and a text single ones"
    return f"{letter!r} belongs into quotes, double ones for a name and single ones for a text"


class _Parser:
    """Reads a filter by recursive descent, a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0
        self._terms = 0

    def read(self) -> Condition:
        condition = self._filter()
        if self._next.kind != "end":
            raise self._wrong("AND, OR or the end is expected")
        return condition

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take(self) -> _Token:
        token = self._next
        self._index += 1
        return token

    def _takes(self, *texts: str) -> bool:
        """Take the next token if it is one of some keywords or signs."""
        if self._next.kind not in ("keyword", "sign") or self._next.text not in texts:
            return False
        self._index += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise self._wrong(f"{text} is expected")

    def _wrong(self, problem: str, token: _Token | None = None) -> BadFilter:
        return BadFilter(self._text, (token or self._next).at, problem)

    def _count(self, token: _Token) -> None:
        self._terms += 1
        if self._terms > MAX_TERMS:
            raise self._wrong(f"it has more than {MAX_TERMS} tests and values: take several", token)

    def _filter(self) -> Condition:
        conditions = [self._all()]
        while self._takes("OR"):
            conditions.append(self._all())
        return either(tuple(conditions))

    def _all(self) -> Condition:
        conditions = [self._operand()]
        while self._takes("AND"):
            conditions.append(self._operand())
        return conditions[0] if len(conditions) == 1 else And(tuple(conditions))

    def _operand(self) -> Condition:
        token = self._next
        if not self._takes("NOT", "("):
            return self._test()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"it is nested more than {MAX_DEPTH} deep", token)
        if token.text == "NOT":
            condition: Condition = Not(self._operand())
        else:
            condition = self._filter()
            self._expect(")")
        self._depth -= 1
        return condition

    def _test(self) -> Condition:
        token = self._next
        self._count(token)
        if token.kind in ("number", "text") or token.text in ("TRUE", "FALSE"):
            value = self._value()
            if isinstance(value, bool) and self._next.text not in _COMPARE:
                return Constant(value)
            sign = self._take()
            if sign.text not in _COMPARE:
                raise self._wrong("a value is compared with a property, as in 3 < price", token)
            return self._compared(self._property(), sign, value, _TURNED.get(sign.text, sign.text))
        tested = self._property()
        sign = self._next
        if sign.kind == "sign" and sign.text in _COMPARE:
            self._take()
            return self._compared(tested, sign, self._value(), sign.text)
        if self._takes("IS"):
            is_not = self._takes("NOT")
            self._expect("NULL")
            return Not(IsNull(tested)) if is_not else IsNull(tested)
        is_not = self._takes("NOT")
        condition = self._membership(tested)
        return Not(condition) if is_not else condition

    def _membership(self, tested: Property) -> Condition:
        token = self._next
        if self._takes("BETWEEN"):
            low = self._number()
            self._expect("AND")
            high = self._number()
            limits = Compared(tested, operator.ge, low), Compared(tested, operator.le, high)
            return And(limits)
        if self._takes("IN"):
            return self._in(tested, token)
        if self._takes(*_TEXT_TESTS):
            where = self._next
            text = self._value()
            if not isinstance(text, bytes):
                raise self._wrong(f"{token.text} takes a text in single quotes", where)
            if token.text == "MATCHES":
                self._check_pattern(text, where)
            return _TEXT_TESTS[token.text](tested, text)
        if token.text == "LIKE":
            raise self._wrong(
                "there is no LIKE: take STARTSWITH, ENDSWITH, CONTAINS or, of words with dots,"
                " MATCHES"
            )
        raise self._wrong(
            "=, <>, <, <=, >, >=, IS, IN, BETWEEN, STARTSWITH, ENDSWITH, CONTAINS or MATCHES is"
            " expected"
        )

    def _in(self, tested: Property, token: _Token) -> Condition:
        self._expect("(")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._expect(")")
        texts = frozenset(value for value in values if isinstance(value, bytes))
        if texts:
            if not all(isinstance(value, bytes) for value in values):
                raise self._wrong("IN takes either texts or numbers", token)
            return IsOneOf(tested, texts)
        if any(isinstance(value, bool) for value in values):
            raise self._wrong("IN takes texts or numbers; take = TRUE or = FALSE", token)
        return either(tuple(Compared(tested, operator.eq, value) for value in values))  # type: ignore[arg-type]

    def _compared(self, tested: Property, sign: _Token, value: _Value, how: str) -> Condition:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Compared(tested, _COMPARE[how], value)
        if how in _TURNED:
            raise self._wrong(
                f"{sign.text} compares numbers; texts are compared by =, <> and IN", sign
            )
        condition: Condition = (
            IsBoolean(tested, value)
            if isinstance(value, bool)
            else IsOneOf(tested, frozenset((value,)))
        )
        return condition if how == "=" else Not(condition)

    def _check_pattern(self, pattern: bytes, token: _Token) -> None:
        if len(pattern) > MAX_TOPIC_BYTES:
            raise self._wrong(
                f"a pattern of {len(pattern)} bytes; the maximum is {MAX_TOPIC_BYTES}", token
            )
        for word in pattern.split(b"."):
            if len(word) > 1 and (b"*" in word or b"#" in word):
                raise self._wrong(
                    f"in the pattern, * and # stand for words and not for parts of one, as in"
                    f" {word.decode()!r}",
                    token,
                )

    def _property(self) -> Property:
        token = self._take()
        if token.kind == "quoted":
            name = token.text[1:-1].replace('""', '"')
        elif token.kind == "word":
            if token.text in _OWN:
                return _OWN[token.text]
            if token.text == "KEYS":
                raise self._wrong(
                    'there is no filter by keys; a header of that name is "KEYS"', token
                )
            name = token.text
        elif token.kind == "keyword":
            raise self._wrong(
                f'a property is expected, or TRUE or FALSE; a header of that name is "{token.text}"'
                " in double quotes",
                token,
            )
        else:
            raise self._wrong("a property is expected", token)
        encoded = self._utf8(name, token)
        if not 0 < len(encoded) <= MAX_NAME_BYTES:
            raise self._wrong(
                f"the name takes {len(encoded)} bytes, between 1 and {MAX_NAME_BYTES} are allowed",
                token,
            )
        return Property(Field.HEADER, encoded)

    def _value(self) -> _Value:
        token = self._take()
        self._count(token)
        if token.kind == "number":
            return self._read_number(token)
        if token.kind == "text":
            return self._utf8(token.text[1:-1].replace("''", "'"), token)
        if token.kind == "keyword" and token.text in ("TRUE", "FALSE"):
            return token.text == "TRUE"
        if token.text == "NULL":
            raise self._wrong("nothing is equal to NULL: take IS NULL or IS NOT NULL", token)
        raise self._wrong(
            "a value is expected: a number, a text in single quotes, TRUE or FALSE", token
        )

    def _number(self) -> int | float:
        token = self._next
        value = self._value()
        if isinstance(value, bytes | bool):
            raise self._wrong("a number is expected", token)
        return value

    def _read_number(self, token: _Token) -> int | float:
        number = number_of(token.text.encode())
        if number is None or not math.isfinite(number):
            raise self._wrong(
                f"a number has at most {MAX_NUMBER_BYTES} characters, and is below 1.8e308", token
            )
        return number

    def _utf8(self, text: str, token: _Token) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise self._wrong("it has a character that UTF-8 cannot encode", token) from None
