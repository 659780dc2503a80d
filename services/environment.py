"""Settings from environment variables, strictly: a misspelt variable is an error, not a default."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings

from adasd.core.errors import InvalidRequest

NESTED = "__"

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def read_settings(kind: type[SettingsT], environment: Mapping[str, str] | None = None) -> SettingsT:
    """The settings as the environment has them. Raises InvalidRequest naming every variable at fault.

    kind: has an `env_prefix` and `env_nested_delimiter="__"`. environment: only to look for unknown names in.
    """
    prefix = kind.model_config.get("env_prefix", "")
    unknown = unknown_variables(kind, os.environ if environment is None else environment)
    if unknown:
        raise InvalidRequest(f"unknown settings: {', '.join(unknown)}; known: {', '.join(known_variables(kind))}")
    try:
        return kind()
    except ValidationError as error:
        faults = (f"{prefix}{NESTED.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors())
        raise InvalidRequest("; ".join(faults)) from None


def known_variables(kind: type[BaseSettings]) -> list[str]:
    """Every variable the settings are read from."""
    prefix = kind.model_config.get("env_prefix", "")
    return [f"{prefix}{name}".upper() for name in _names(kind)]


def unknown_variables(kind: type[BaseSettings], environment: Mapping[str, str]) -> list[str]:
    """Variables that carry the settings' prefix and name none of them."""
    prefix, known = kind.model_config.get("env_prefix", "").upper(), set(known_variables(kind))
    return sorted(name for name in environment if name.upper().startswith(prefix) and name.upper() not in known)


def _names(kind: type[BaseModel]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        yield name
        yield from (f"{name}{NESTED}{inner}" for inner in _group(field.annotation))


def _group(annotation: Any) -> Iterator[str]:
    """Field names of a nested group; none for a plain value."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        yield from (field.name for field in dataclasses.fields(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _names(annotation)
