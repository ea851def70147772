"""Adds files from outside docs/ to the site: ARCHITECTURE.md, CHANGELOG.md and the examples.

Pages link to these files by their paths in the repository; the hooks rewrite the links for the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
#: Files of the repository's root that become pages of the site.
PAGES = {"ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md"}
EXAMPLES = "examples.md"
_FETCHED = re.compile(r"<(?:script|img|iframe|link rel=.stylesheet.)[^>]*?(?:src|href)=.(https?://[^\"'>]+)")
_LINK = re.compile(r"\]\(((?:\.\./)*)([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Add the pages."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, EXAMPLES, content=_examples()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Change links to and from the added pages."""
    here = posixpath.dirname(page.file.src_uri)
    is_added = page.file.src_uri in PAGES.values()

    def moved(link):
        up, target, anchor = link[1], link[2], link[3] or ""
        if target in PAGES:
            target, up = posixpath.relpath(PAGES[target], here or "."), ""
        elif target.partition("/")[0] == "examples":
            anchor = f"#{Path(target).name.replace('.', '')}" if "/" in target else ""
            target, up = posixpath.relpath(EXAMPLES, here or "."), ""
        elif is_added:
            target = target.removeprefix("docs/")
        return f"]({up}{target}{anchor})"

    return _LINK.sub(moved, markdown)


def on_post_page(output, page, config):
    """Label the search and fix empty headings for screen readers; reject external resources."""
    if fetched := _FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} makes browsers fetch {fetched[1]}")
    output = output.replace("<th></th>", "<td></td>")
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def _examples():
    sections = [
        f"## {path.name}\n\n```python\n{path.read_text().strip()}\n```\n"
        for path in sorted((ROOT / "examples").glob("*.py"))
    ]
    return "\n".join(
        [
            "# Examples\n",
            "One-page programs from the folder `examples`. Most expect `libra up` in another terminal.\n",
            *sections,
        ]
    )
