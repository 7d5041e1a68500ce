"""Read requests and answers; a refusal names the field, its rule, and the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from inspect import cleandoc
from itertools import chain
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, ValidationError, inspect
from msgspec.structs import FieldInfo

from martlet.schema.operation import OperationAnswer, OperationRequest
from martlet.text import shown_value

RequestT = TypeVar("RequestT", bound=OperationRequest)
AnswerT = TypeVar("AnswerT")


class Refusal(ValueError):
    """A request is refused.

    Args:
        code: one word in capitals, for programs.
        text: with ``{field}`` where it names one, which servers, clients, commands and pages spell
            in their own way.
        value: the wrong one as text, to be shown behind the field; None if the text says enough.
    """

    def __init__(self, code: str, text: str, value: str | None = None) -> None:
        super().__init__(code, text, value)
        self.code, self.text, self.value = code, text, value

    def spelled(self, spell: Callable[[str, str | None], str]) -> str:
        """Return the text, with fields as `spell` writes them."""
        return self.text.format_map(_Spelling(spell, self.value))

    def __str__(self) -> str:
        return self.spelled(lambda name, value: name if value is None else f"{name} {value!r}")


class _Spelling(dict[str, str]):
    def __init__(self, spell: Callable[[str, str | None], str], value: str | None) -> None:
        super().__init__()
        self._spell, self._value = spell, value

    def __missing__(self, name: str) -> str:
        return self._spell(name, self._value)


def fields_of(kind: type[Struct]) -> Mapping[str, FieldInfo]:
    """Return the fields of a struct by their names in JSON."""
    hashable: Any = kind  # mypy takes a class for its unhashable instances
    return _fields_of(hashable)


@cache
def _fields_of(kind: Any) -> Mapping[str, FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def help_of(kind: type[OperationRequest]) -> Mapping[str, str]:
    """Return the help of the fields of a request, from the docstrings of its classes."""
    texts: dict[str, str] = {}
    for base in kind.__mro__:
        doc = cleandoc(base.__doc__ or "") if issubclass(base, OperationRequest) else ""
        lines = re.sub(r"\n {4,}", " ", doc)
        texts = dict(re.findall(r"^(\w+): (.+)$", lines, re.MULTILINE)) | texts
    return texts


def read_request(kind: type[RequestT], fields: Mapping[str, Any]) -> RequestT:
    """Read a request. A field that is null is one that is left out. Raises Refusal."""
    declared = fields_of(kind)
    fields = _with_present_names(kind, fields)
    if not declared.keys() >= fields.keys():
        raise Refusal("BAD_ARGUMENT", _unknown(fields.keys() - declared.keys(), declared))
    for name in kind.selecting:
        if name in fields and fields[name] in (None, "", [], {}):
            raise _empty(name, declared[name])
    values = {name: value for name, value in fields.items() if value is not None}
    for name, value in values.items():
        _check_text(name, value)
    try:
        return msgspec.convert(values, kind)
    except ValidationError as error:
        if isinstance(error.__cause__, Refusal):
            raise error.__cause__ from None
        check_fields(kind, values)
        for name, field in declared.items():
            if field.required and name not in values:
                raise Refusal("MISSING_ARGUMENT", f"the argument {{{name}}} is missing") from None
        raise


def _with_present_names(
    kind: type[OperationRequest], fields: Mapping[str, Any]
) -> Mapping[str, Any]:
    for former, name in kind.former.items():
        if former in fields:
            if name in fields:
                raise Refusal("BAD_ARGUMENT", f"{former!r} is {{{name}}} now: give one of them")
            fields = {**fields, name: fields[former]}
            del fields[former]
    return fields


def check_fields(kind: type[OperationRequest], values: Mapping[str, Any]) -> None:
    """Check fields one by one, without the rules between them. Raises Refusal."""
    for name, field in fields_of(kind).items():
        if name in values:
            _check_text(name, values[name])
            try:
                msgspec.convert(values[name], field.type)
            except ValidationError:
                if name in kind.selecting and values[name] in ("", []):
                    raise _empty(name, field) from None
                raise _refusal(name, field, values[name]) from None


def read_answer(kind: type[AnswerT], answer: Any) -> AnswerT:
    """Read a broker's answer, whose JSON stays in `OperationAnswer.fields`. Raises ValueError."""
    value = msgspec.convert(answer, kind)
    _keep_fields(value, answer)
    return value


def _keep_fields(value: Any, json: Any) -> None:
    if isinstance(value, OperationAnswer):
        value.__dict__["fields"] = json
        kind: Any = type(value)  # mypy takes a class for its unhashable instances
        for name, field in _inner_answers(kind).items():
            _keep_fields(getattr(value, field.name), json.get(name))
    else:
        for item, item_json in zip(value or (), json or (), strict=True):
            _keep_fields(item, item_json)


@cache
def _inner_answers(kind: Any) -> Mapping[str, FieldInfo]:
    return {name: field for name, field in fields_of(kind).items() if answer_in(field) is not None}


def answer_in(field: FieldInfo) -> type[OperationAnswer] | None:
    """Return the class of a field's answers; None if it has none."""
    kinds = (field.type, *get_args(field.type))
    return next((kind for kind in kinds if isinstance(kind, type(OperationAnswer))), None)


def to_json(value: object) -> dict[str, Any]:
    """Return a struct as JSON has it."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    return fields


def checked(kind: type[OperationRequest], request: OperationRequest) -> dict[str, Any]:
    """Return the fields that a client sends. Raises Refusal, as the broker would.

    Args:
        kind: the request of the operation.
        request: one of that class, or of a subclass, whose further fields are not sent.
    """
    fields = {}
    for name, field in fields_of(kind).items():
        value = getattr(request, field.name)
        if value is None or value == field.default:
            continue
        if isinstance(type_of(field)[0], inspect.CollectionType):
            is_one = isinstance(value, str | bytes) or not isinstance(value, Iterable)
            items = [value] if is_one else value
            value = [_as_text(item) for item in items]
        fields[name] = _as_text(value)
    for former, name in kind.former.items():
        if name in fields:
            fields[former] = fields.pop(name)
    read_request(kind, fields)
    return fields


def _as_text(value: object) -> object:
    """Return bytes as text: msgspec would write them in base64."""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def type_of(field: FieldInfo) -> tuple[inspect.Type, Mapping[str, Any]]:
    """Return the type of a field without None and limits, and what its kind says further."""
    return _unwrapped(inspect.type_info(field.type))


def is_position(field: FieldInfo) -> bool:
    """Whether a field only says where a list continues: no flag, form or user sets it."""
    return type_of(field)[1].get("flag") == ""


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, Mapping[str, Any]]:
    extra: Mapping[str, Any] = {}
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            extra, kind = {**(kind.extra or {}), **extra}, kind.type
        else:
            (kind,) = (one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind, extra


def words_of(kind: Any) -> tuple[str, ...]:
    """Return the words of a type that is one of some, in their order; empty for others."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next((words for inner in get_args(kind) if (words := words_of(inner))), ())


def must_be(field: FieldInfo) -> str:
    """Return what the value of a field must be, in words."""
    kind, extra = type_of(field)
    if words := words_of(field.type):
        return f"one of {', '.join(words)}"
    if isinstance(kind, inspect.CollectionType):
        rule = _rule(_unwrapped(kind.item_type)[1])
        return f"{_must_be(kind)}; {rule}" if rule else _must_be(kind)
    return _rule(extra) or _must_be(kind)


def _rule(extra: Mapping[str, Any]) -> str:
    """Return the rule of a kind without the words that join it to a field."""
    return str(extra.get("rule", "")).partition(": ")[2]


def _unknown(names: Collection[str], declared: Collection[str]) -> str:
    shown = _literally(f"{min(names)!r:.80}")
    return f"unknown argument {shown}; there are {', '.join(sorted(declared)) or 'none'}"


def _empty(name: str, field: FieldInfo) -> Refusal:
    code = type_of(field)[1].get("code", "BAD_ARGUMENT")
    advice = "" if field.required else ": leave it out, or say what it selects"
    return Refusal(code, f"{{{name}}} is empty{advice}")


def _check_text(name: str, value: object) -> None:
    """Refuse half a pair of surrogates, also in a list, or in the names and values of an object:
    JSON can hold it, and msgspec cannot convert it.
    """
    texts = value if isinstance(value, list) else (value,)
    for text in chain(value, value.values()) if isinstance(value, dict) else texts:
        if isinstance(text, str) and not text.isascii() and text != _characters(text):
            shown = _literally(f"{text!a:.80}")
            raise Refusal("BAD_ARGUMENT", f"{{{name}}} is no text that UTF-8 can encode: {shown}")


def _refusal(name: str, field: FieldInfo, value: Any) -> Refusal:
    kind, extra = type_of(field)
    if value in ("", []) and not isinstance(
        kind, inspect.IntType | inspect.BoolType | inspect.DictType
    ):
        return _empty(name, field)
    if isinstance(kind, inspect.CollectionType) and isinstance(value, list):
        item_type = kind.item_type
        wrong = [item for item in value if not _fits(item, item_type)]
        if wrong:
            value = wrong[0]
            kind, extra = _unwrapped(item_type)
    rule = extra.get("rule")
    if words := words_of(field.type):
        rule = f": it is one of {', '.join(words)}"
    if rule is not None and isinstance(value, str):
        return Refusal(extra.get("code", "BAD_ARGUMENT"), f"{{{name}}}{rule}", value[:80])
    requirement = _must_be(kind)
    text = f"{{{name}}} must be {requirement}" if requirement else f"{{{name}}}{rule}"
    return Refusal("BAD_ARGUMENT", f"{text}, not {_literally(shown_value(value))}")


def _fits(value: object, kind: inspect.Type) -> bool:
    text, _ = _unwrapped(kind)
    if not isinstance(text, inspect.StrType):
        return True  # What an item is, only the broker knows.
    return isinstance(value, str) and re.search(text.pattern or "", value) is not None


def _must_be(kind: inspect.Type) -> str:
    """Return what a value must be, in words; empty where only the rule of its kind says that."""
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=low, le=high):
            return f"a whole number from {low} to {high}"
        case inspect.StrType(max_length=limit) if limit is not None:
            return f"a text of at most {limit} characters"
        case inspect.StrType() | inspect.LiteralType():
            return ""
        case inspect.CollectionType(max_length=limit):
            return f"a list of at most {limit}"
        case inspect.DictType(max_length=limit, value_type=item) if limit is not None:
            values = "" if isinstance(item, inspect.AnyType) else f", each {_must_be(item)}"
            return f"an object of at most {limit} fields{values}"
        case _:
            return "an object"


def _literally(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _characters(text: str) -> str:
    """Return a text without invalid characters: JSON can hold half a pair of surrogates."""
    return text.encode("utf-8", "replace").decode()
