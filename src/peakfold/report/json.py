"""The Report as JSON, and back.

The field names are an interface. `to_json` adds what is derived (``memory_ratio``, ``latency_ratio``,
``components``); `from_json` checks every field and says which one is wrong.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from peakfold.errors import CacheError
from peakfold.report.model import Estimate, Report, Texts

FORMAT = 1
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")


def to_json(report: Report | Estimate) -> str:
    """Return a report as JSON text, the same bytes for the same report, one line a field.

    Numbers that JSON lacks (NaN, infinities) are null.

    Example:
        >>> to_dict((Report("bert")))["optimized"]["peak_bytes"] is None
        True
    """
    lines = (
        f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for name, value in to_dict(report).items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def many_to_json(reports: Sequence[Report]) -> str:
    """Return several reports as one JSON text: ``{"format": .., "reports": [..]}``."""
    return f'{{"format": {FORMAT}, "reports": [\n{",".join(to_json(report) for report in reports)}]}}\n'


def to_dict(report: Report | Estimate) -> dict[str, Json]:
    """Return a report as what JSON knows: dicts, lists, strings, numbers, None."""
    encoded = _encode(report)
    assert isinstance(encoded, dict)
    if isinstance(report, Report):
        after = report.timelines.after
        encoded["memory_ratio"] = report.memory_ratio
        encoded["latency_ratio"] = report.latency_ratio
        encoded["components"] = _encode(after.at_peak) if after else None
    return {"format": FORMAT, **encoded}


def from_json(text: str, where: str = "") -> Report:
    """Read a report back.

    Args:
        text: what `to_json` wrote.
        where: the file, for messages.

    Raises:
        CacheError: the text is not JSON, is of another format, or a field is missing or wrong.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}" if where else f"line {error.lineno}"
        raise _unreadable("it is not JSON", place, "a report", error.msg) from None
    except RecursionError:
        raise _unreadable("it is not a report", where, "an object", "lists in lists without end") from None
    if not isinstance(found, dict):
        raise _unreadable("it is not a report", where, "an object", type(found).__name__)
    if found.get("format") != FORMAT:
        got = repr(found.get("format"))
        raise _unreadable("it was written by another version", where, f"format {FORMAT}", f"format {got}")
    return _decode(Report, found, "report", where)


def _encode(value: object) -> Json:
    if is_dataclass(value):
        return {
            item.name: _encode(getattr(value, item.name)) for item in fields(value) if item.type is not Texts
        }
    if isinstance(value, Mapping):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    assert value is None or isinstance(value, bool | int | str), value
    return value


def _decode(cls: type[T], found: dict[str, object], path: str, where: str) -> T:
    assert is_dataclass(cls)
    hints = get_type_hints(cls)
    given: dict[str, object] = {}
    for item in fields(cls):
        if item.type is Texts:
            continue
        if item.name in found:
            given[item.name] = _value(hints[item.name], found[item.name], f"{path}.{item.name}", where)
        elif _required(item):
            raise _unreadable(f"{path}.{item.name} is missing", where, "a value", "nothing")
    try:
        made = cls(**given)
    except ValueError as error:
        raise _unreadable(f"{path} is wrong", where, "a timeline", str(error)) from None
    assert isinstance(made, cls)
    return made


def _required(item: Field[object]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _value(kind: object, found: object, path: str, where: str) -> object:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union):
        return None if found is None else _value(inner[0], found, path, where)
    if origin is tuple and isinstance(found, list):
        return tuple(_value(inner[0], item, f"{path}[{i}]", where) for i, item in enumerate(found))
    if origin is Mapping and isinstance(found, dict):
        return {key: _value(inner[1], item, f"{path}.{key}", where) for key, item in found.items()}
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(found, dict):
        return _decode(kind, found, path, where)
    if _is_plain(kind, origin, found, inner):
        return found
    expected = getattr(kind, "__name__", str(kind))
    raise _unreadable(f"{path} is wrong", where, expected, repr(found)[:60])


def _is_plain(kind: object, origin: object, found: object, inner: tuple[object, ...]) -> bool:
    if origin is Literal:
        return found in inner
    if kind is float:
        return isinstance(found, int | float) and not isinstance(found, bool)
    if kind is int:
        return isinstance(found, int) and not isinstance(found, bool)
    return kind in (str, bool, NoneType) and type(found) is kind


def _unreadable(what: str, where: str, expected: str, got: str) -> CacheError:
    return CacheError(
        stage="report",
        what=f"the report cannot be read: {what}",
        where=where,
        expected=expected,
        got=got,
        hint="run `peakfold optimize TARGET --out DIR` again to write a new one",
    )
