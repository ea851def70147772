"""The configuration of a pipeline: a TOML file whose keys are the fields of a Struct.

Every invalid key or value is reported in one sentence with the allowed ones.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from libramq.errors import ConfigError
from libramq.spark.options import Options, hint_at

T = TypeVar("T", bound=msgspec.Struct)
#: msgspec's message for a string that is not one of a Literal's values.
_NO_CHOICE: Final = "Invalid enum value"


def read_config(
    kind: type[T], path: Path | None, *, defaults: Mapping[str, Any] = MappingProxyType({}), **overrides: Any
) -> T:
    """Return the configuration in a file; overrides other than None take precedence.

    defaults: values for keys that the file lacks.
    """
    text = {**defaults, **(_read(path) if path is not None else {})}
    named = {name: value for name, value in overrides.items() if value is not None}
    return parse_config(kind, text | named, where="the pipeline" if path is None else str(path))


def parse_config(kind: type[T], keys: Mapping[str, Any], *, where: str) -> T:
    """Check the keys and their types; ConfigError begins with `where`."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for key in keys:
        if key not in fields:
            raise ConfigError(f"{where}: no key {key}; {hint_at(key, fields)}")
    missing = [name for name, field in fields.items() if field.required and name not in keys]
    if missing:
        raise ConfigError(f"{where} needs {' and '.join(missing)}: give a TOML file with them by --config")
    try:
        return msgspec.convert(dict(keys), kind)
    except msgspec.ValidationError as error:
        wrong, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        allowed = (
            get_args(get_type_hints(kind)[name]) if wrong.startswith(_NO_CHOICE) and name in fields else ()
        )
        hint = f"; allowed are {', '.join(map(str, allowed))}" if allowed else ""
        raise ConfigError(f"{where}: {name or 'a value'}: {wrong}{hint}") from None


def duration_ms(key: str, text: str) -> int:
    """Parse a duration like 500ms, 30s, 15m, 2h or 1d."""
    return Options({key: text}, (key,)).duration_ms(key, 0)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
