r"""Java properties: reads and writes configuration files, parses numbers as Java does, and names lines with
errors.

    name=value  |  name: value  |  name value      \ at a line's end: the value continues in the next line
    # comment   |  ! comment                       \t \n \f \r \uXXXX, \ before anything else: that character

Upstream: java.util.Properties.load; MixAll.string2Properties, and properties2Object, which trims the values.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from libramq.errors import ConfigError

#: Ours: the most characters of a value in a message.
SHOWN_MAX: Final = 64
#: The only line ends in java.util.Properties; str.splitlines() also splits elsewhere, for example at U+2028.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"
_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))  # String.trim()
_LINE: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BYTE_ORDER_MARKS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def read_properties(path: Path) -> dict[str, str]:
    """Read a properties file (Latin-1); ConfigError names the file, the line and the remedy."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return _decode(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_properties_files(paths: Iterable[Path]) -> dict[str, str]:
    """Read several properties files as one; later files take precedence. Secrets may have their own file."""
    properties: dict[str, str] = {}
    for path in paths:
        properties |= read_properties(path)
    return properties


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in a text; ConfigError names the line in which Java finds an error."""
    properties = {}
    for number, line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        assert match is not None, "a logical line does not end with a continuation backslash"
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
    """Return the integer that Java reads from a value, without underscores; None if it is not a number."""
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None


def shown(text: str) -> str:
    """Return a value for a message, truncated if it is long."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text)} characters)"


def property_line(name: str, value: str) -> str:
    """Return a line from which Java and `parse_properties` read this value."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    units = escaped.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return f"{name}=" + "".join(chr(code) if code < 0x80 else f"\\u{code:04x}" for code in codes) + "\n"


def _decode(data: bytes) -> dict[str, str]:
    """Return a file's properties. UTF-8 is refused, because Java would silently read other characters."""
    if data.startswith(_BYTE_ORDER_MARKS) or b"\0" in data:
        raise ConfigError(
            "line 1: the file begins with a byte order mark or is not text; save it as Latin-1 or plain ASCII"
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
    """Yield numbers and texts of logical lines, joining continuation lines; skip blanks and comments."""
    lines = enumerate(_LINE_END.split(text), 1)
    for number, line in lines:
        line = line.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        parts = [line]
        while (len(parts[-1]) - len(parts[-1].rstrip("\\"))) % 2:
            parts[-1] = parts[-1][:-1]
            if parts == [""]:  # Still empty: the next line may be a comment.
                break
            parts.append(next(lines, (0, ""))[1].lstrip(_BLANKS))
        else:
            yield number, "".join(parts)


def _unescaped(text: str) -> str:
    r"""Return the unescaped text; ValueError for an incomplete \uXXXX or half a surrogate pair."""
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(_character, text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


def _character(escape: re.Match[str]) -> str:
    what = escape[1]
    if what[0] == "u":
        return chr(int(what[1:], 16))
    return _NAMED.get(what, what)
