"""The sizes of all tables reachable from an object, found by walking the object graph.

    object ─► attribute ─┬► table: counted as "module.Class.attribute"; its elements are walked
                         └► object: counted as "module.Class", unless it is a value; its attributes are walked

Tables are found, not listed, so a new one is counted from its first day. The sizes of one attribute are
summed over all instances of its class: this shows an entry left in one of many tables, or a table left over.
"""

import enum
import functools
import gc
import itertools
import types
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

#: Types whose size can change, or that are replaced by a larger instance.
TABLES: Final = (dict, list, tuple, set, frozenset, deque, bytearray, array)
#: Types that lead nowhere, or everywhere: the modules' own variables are separate roots (`modules`).
LEAVES: Final = (
    str, bytes, int, float, complex, type, enum.Enum, types.ModuleType, types.CodeType, array, bytearray,
    functools._lru_cache_wrapper,
)  # fmt: skip
OURS: Final = "libramq."
#: Parts of the simulator: its events, network and disks are not tables of a node.
SIMULATED: Final = "libramq.testing."
#: Foreign modules whose objects are entered: they hold tables and functions, unlike locks and loggers.
ENTERED: Final = ("builtins", "collections", "functools", "itertools", "operator", "types")


def table_sizes(*roots: object) -> Counter[str]:
    """Return the number of entries by table, and of mutable instances by class, that the roots reach.

    The roots themselves may be parts of the simulator; others are not entered.
    """
    sizes: Counter[str] = Counter()
    seen = {id(root) for root in roots}
    reached = list(roots)  # Keep all objects until the end, so that no id is reused.
    for one in reached:
        for name, value in _attributes(one):
            for found in _counted(name, value, sizes):
                if id(found) not in seen and _is_entered(found):
                    seen.add(id(found))
                    reached.append(found)
                    if _is_ours(found) and not _is_value(found):
                        sizes[_class_name(found)] += 1
    return sizes


def modules(loaded: Mapping[str, types.ModuleType]) -> types.SimpleNamespace:
    """Return a root for the variables and the caches of our modules and classes, except the simulator's."""
    found = types.SimpleNamespace()
    for module_name, module in loaded.items():
        if not module_name.startswith(OURS) or f"{module_name}.".startswith(SIMULATED):
            continue
        short = module_name.removeprefix(OURS)
        for name, value in vars(module).items():
            if isinstance(value, type):
                if value.__module__ == module_name:
                    _set_all(found, f"{short}.{value.__qualname__}", vars(value))
            else:
                _set_all(found, short, {name: value})
    return found


def _set_all(root: types.SimpleNamespace, prefix: str, variables: Mapping[str, object]) -> None:
    for name, value in variables.items():
        if not (name.startswith("__") and name.endswith("__")):
            setattr(root, f"{prefix}.{name}", value)


def _counted(name: str, value: object, sizes: Counter[str]) -> Iterator[object]:
    """Count a table, and the tables in it; yield everything else in it.

    A cache or a deque with a limit is not counted, because the limit bounds its size.
    """
    if isinstance(value, functools._lru_cache_wrapper):
        size, limit = value.cache_info().currsize, value.cache_info().maxsize
        if limit is None:
            sizes[f"{name} (cache)"] += size
        return
    if type(value) not in TABLES and not isinstance(value, dict | list | set | deque):
        yield value
        return
    if not (isinstance(value, deque) and value.maxlen is not None):
        sizes[name] += len(value)  # type: ignore[arg-type]
    if _is_ours(value):
        yield value  # The table has attributes as well.
    if isinstance(value, LEAVES):
        return
    if isinstance(value, dict):
        for key in value:
            yield from _counted(f"{name} (keys)", key, sizes)
    for each in value.values() if isinstance(value, dict) else value:  # type: ignore[attr-defined]
        yield from _counted(f"{name}[]", each, sizes)


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    """Yield an object's attributes under the names used for their sizes."""
    if isinstance(one, types.FunctionType):
        names = one.__code__.co_freevars
        for name, cell in zip(names, one.__closure__ or (), strict=True):
            yield f"{_function_name(one)}.{name}", _content(cell)
    elif isinstance(one, types.MethodType):
        yield "method", one.__self__
    elif isinstance(one, functools.partial):
        yield from (("partial", each) for each in (one.func, *one.args, *one.keywords.values()))
    elif isinstance(one, types.SimpleNamespace):
        yield from vars(one).items()
    elif _is_ours(one):
        kind = _class_name(one)
        yield from ((f"{kind}.{name}", value) for name, value in _variables(one))
    else:
        yield from ((type(one).__name__, each) for each in gc.get_referents(one))


def _variables(one: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes that an instance has, in its dictionary or in slots."""
    yield from getattr(one, "__dict__", {}).items()
    if isinstance(one, tuple):
        yield from zip(getattr(type(one), "_fields", itertools.repeat("items")), one, strict=False)
    for kind in type(one).__mro__:
        slots: str | Iterable[str] = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{slot}" if _is_private(slot) else slot
            if name not in ("__dict__", "__weakref__") and hasattr(one, name):
                yield name, getattr(one, name)


def _is_private(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The slot is empty.
        return None


def _is_entered(one: object) -> bool:
    if one is None or isinstance(one, LEAVES):
        return False
    modules_of = [kind.__module__ for kind in type(one).__mro__[:-1]]
    if _is_ours(one):
        return any(not f"{each}.".startswith(SIMULATED) for each in modules_of)
    return not modules_of or modules_of[0].partition(".")[0] in ENTERED


def _is_value(one: object) -> bool:
    """Return whether an object is a value: the number of equal values means nothing."""
    kind = type(one)
    parameters = getattr(kind, "__dataclass_params__", None) or getattr(kind, "__struct_config__", None)
    return isinstance(one, tuple) or (parameters is not None and parameters.frozen)


def _is_ours(one: object) -> bool:
    return type(one).__module__.startswith(OURS)


def _class_name(one: object) -> str:
    return f"{type(one).__module__.removeprefix(OURS)}.{type(one).__qualname__}"


def _function_name(one: types.FunctionType) -> str:
    return f"{one.__module__.removeprefix(OURS)}.{one.__qualname__}"
