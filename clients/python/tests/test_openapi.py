"""The types are those of the node's `/openapi.json`."""

from __future__ import annotations

import types as builtin_types
from dataclasses import MISSING, fields
from typing import Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

import httpx
import pytest

from tollgate_limiter import types

from support import Node

ANSWERS = {
    "CheckAnswer": types.CheckAnswer,
    "Decision": types.Decision,
    "Fallback": types.Fallback,
    "Hold": types.HoldState,
    "LeaseAnswer": types.LeaseAnswer,
    "Problem": types.Problem,
    "QuotaState": types.QuotaState,
    "RefundAnswer": types.RefundAnswer,
    "RenewResult": types.RenewAnswer,
    "SettleResult": types.SettleAnswer,
    "TogetherAnswer": types.TogetherAnswer,
    "Usage": types.Usage,
    "Violation": types.Violation,
}

# Members of a feature that this client does not have.
ABSENT = {"entry"}


@pytest.fixture(scope="module")
def document(node: Node) -> Any:
    return httpx.get(f"{node.url}/openapi.json").json()


@pytest.mark.parametrize("name", ANSWERS)
def test_answer_has_the_members_of_the_document(name: str, document: Any) -> None:
    schemas = document["components"]["schemas"]
    kind: Any = ANSWERS[name]
    required, members = shape(schemas[name], schemas)
    hints = get_type_hints(kind)
    expected = set(members)
    assert set(hints) == expected
    without_default = {
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }
    assert without_default == required
    for member, schema in members.items():
        absent = {type(None)} if member not in required else set()
        assert kinds_of(hints[member]) - absent == kinds_in(schema, schemas) - absent, member


def test_check_has_the_members_of_the_document_and_once(document: Any) -> None:
    schemas = document["components"]["schemas"]
    required, members = shape(schemas["Check"], schemas)
    expected = set(members) | {"once"}
    hints = get_type_hints(types.Check)
    # An older node knows no plans.
    assert set(hints) | {"plan"} == expected | {"plan"}
    assert types.Check.__required_keys__ == required
    for member, schema in members.items():
        assert kinds_of(hints[member]) == kinds_in(schema, schemas), member


def test_calls_are_those_of_the_document(document: Any) -> None:
    paths = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert paths >= {
        ("/v1/check", "post"),
        ("/v1/check/batch", "post"),
        ("/v1/check/all", "post"),
        ("/v1/refund", "post"),
        ("/v1/settle", "post"),
        ("/v1/lease", "post"),
        ("/v1/renew", "post"),
        ("/v1/usage", "get"),
    }


def shape(schema: Any, schemas: Any) -> tuple[set[str], dict[str, Any]]:
    required, members = set(schema.get("required", [])), dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        part = resolve(part, schemas)
        more_required, more = shape(part, schemas)
        required |= more_required
        members |= more
    return required, {name: members[name] for name in members if name not in ABSENT}


def resolve(schema: Any, schemas: Any) -> Any:
    reference = schema.get("$ref")
    return schemas[reference.rpartition("/")[2]] if reference else schema


def kinds_in(schema: Any, schemas: Any) -> set[type]:
    """The types that JSON values of `schema` have in Python."""
    schema = resolve(schema, schemas)
    if "anyOf" in schema or "oneOf" in schema:
        return set().union(
            *(kinds_in(one, schemas) for one in schema.get("anyOf", schema.get("oneOf")))
        )
    names = schema.get("type", "object")
    names = [names] if isinstance(names, str) else names
    kinds = {"string": str, "integer": int, "boolean": bool, "null": type(None)}
    return {kinds.get(name, {"array": list, "object": dict}.get(name, object)) for name in names}


def kinds_of(hint: Any) -> set[type]:
    origin = get_origin(hint)
    if origin in (Union, builtin_types.UnionType):
        return set().union(*(kinds_of(one) for one in get_args(hint)))
    if origin is Literal:
        return {type(value) for value in get_args(hint)}
    if origin is not None:
        return {origin}
    if isinstance(hint, type) and (hasattr(hint, "__dataclass_fields__") or issubclass(hint, dict)):
        return {dict}
    assert hint is not TypedDict
    return {hint}
