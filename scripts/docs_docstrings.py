"""Turns the options in docstrings into lists, for the API pages of the site.

retries: further attempts, at other brokers      becomes      - `retries`: further attempts, at other brokers
"""

import re

import griffe

#: One option or several at the beginning of a line; code and tables are indented.
_OPTION = re.compile(r"((?:[a-z_]+)(?:, [a-z_]+)*): ")


class OptionLists(griffe.Extension):
    """Rewrites every loaded docstring."""

    def on_object(self, *, obj, **_):
        """Rewrite the docstring of a module, class or function."""
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text):
    """Return the text with its options as list items; the lines after an option belong to it."""
    lines = []
    is_in_item = False
    for line in text.splitlines():
        option = _OPTION.match(line)
        if option is not None:
            if not is_in_item and lines and lines[-1]:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in option[1].split(", "))
            lines.append(f"- {names}: {line[option.end() :]}")
            is_in_item = True
        elif is_in_item and line and not line.startswith(" "):
            lines.append(f"    {line}")
        else:
            is_in_item = False
            lines.append(line)
    return "\n".join(lines)
