"""Java properties: the text of configuration files, and of requests that read or change a configuration.

Upstream: java.util.Properties, MixAll.string2Properties.
"""

import re
from typing import Final

#: java.util.Properties ends a line nowhere else; str.splitlines() does, for example at U+2028.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


def parse_properties(text: str) -> dict[str, str]:
    """Read a Java properties file: `key=value` or `key: value` lines, `#` and `!` for comments."""
    properties = {}
    for line in _LINE_END.split(text):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        ends = [position for position in (line.find("="), line.find(":")) if position > 0]
        end = min(ends, default=len(line))
        properties[line[:end].strip()] = line[end + 1 :].strip()
    return properties
