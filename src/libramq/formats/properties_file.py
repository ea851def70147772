r"""Java properties: how the text of configuration files is read and written, what counts as a number, and
which line has a mistake.

    name=value  |  name: value  |  name value      \ at a line's end: the value continues in the next line
    # comment   |  ! comment                       \t \n \f \r \uXXXX, \ before anything else: that character

Upstream: java.util.Properties.load; MixAll.string2Properties, and properties2Object, which trims the values.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from libramq.errors import ConfigError

#: Ours: how much of a value a message shows.
SHOWN_MAX: Final = 64
#: java.util.Properties ends a line nowhere else; str.splitlines() does, for example at U+2028.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"
_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))  # String.trim()
_LINE: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BYTE_ORDER_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def read_properties(path: Path) -> dict[str, str]:
    """Read a properties file, which is Latin-1; ConfigError names the file, the line and the remedy."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return _decode(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_properties_files(paths: Iterable[Path]) -> dict[str, str]:
    """Read several properties files as one, the later ones winning: secrets can have a file of their own."""
    properties: dict[str, str] = {}
    for path in paths:
        properties |= read_properties(path)
    return properties


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in a text; ConfigError names the line in which Java finds a mistake."""
    properties = {}
    for number, line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        assert match is not None, "a logical line ends with no backslash of its own"
        try:
            name, value = map(_unescaped, match.groups())
        except UnicodeDecodeError:
            raise ConfigError(
                f"line {number}: half a character: \\ud800 to \\udbff are written only before one of "
                "\\udc00 to \\udfff, and those only behind"
            ) from None
        except ValueError:
            raise ConfigError(
                f"line {number}: \\u needs the four hexadecimal digits of a character, and a backslash "
                "itself is written \\\\"
            ) from None
        properties[name] = value.strip(_TRIMMED)
    return properties


def whole_number(text: str) -> int | None:
    """Return the number that a value means to Java, whose numbers have no underscores; None if it is none."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None


def shown(text: str) -> str:
    """Return a value as a message shows it: the beginning, if it is long."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text)} characters)"


def property_line(name: str, value: str) -> str:
    """Return the line from which Java, and `parse_properties`, reads the value."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    units = escaped.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return f"{name}=" + "".join(chr(code) if code < 0x80 else f"\\u{code:04x}" for code in codes) + "\n"


def _decode(data: bytes) -> dict[str, str]:
    """Return a file's properties. Java would read UTF-8 as other characters without a word: it is refused."""
    if data.startswith(_BYTE_ORDER_MARKS) or b"\0" in data:
        raise ConfigError(
            "line 1: the file begins with a byte order mark, or is no text; save it as Latin-1 or plain ASCII"
        )
    text = data.decode("latin-1")
    for number, line in _logical_lines(text):
        if not line.isascii() and _is_utf_8(line):
            raise ConfigError(
                f"line {number}: UTF-8, which Java's Properties reads as Latin-1; write its characters as "
                "\\uXXXX, as native2ascii does"
            )
    return parse_properties(text)


def _is_utf_8(line: str) -> bool:
    try:
        line.encode("latin-1").decode()
    except UnicodeDecodeError:
        return False
    return True


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither blank nor comments, continued ones as one, with their numbers."""
    lines = enumerate(_LINE_END.split(text), 1)
    for number, line in lines:
        line = line.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        parts = [line]
        while (len(parts[-1]) - len(parts[-1].rstrip("\\"))) % 2:
            parts[-1] = parts[-1][:-1]
            if parts == [""]:  # Nothing yet: the next line may be a comment.
                break
            parts.append(next(lines, (0, ""))[1].lstrip(_BLANKS))
        else:
            yield number, "".join(parts)


def _unescaped(text: str) -> str:
    r"""Return the text that is meant; ValueError at an incomplete \uXXXX, or half a surrogate pair."""
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(_character, text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


def _character(escape: re.Match[str]) -> str:
    what = escape[1]
    if what[0] == "u":
        return chr(int(what[1:], 16))
    return _NAMED.get(what, what)
