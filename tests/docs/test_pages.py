"""Tests of the pages: links lead somewhere, names exist, generated tables match the code."""

import importlib
import inspect
import itertools
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt

from libramq.broker.config import BrokerConfig
from libramq.client import Admin, Consumer, Producer, PushConsumer, SimpleConsumer
from libramq.client.consuming.consumer import AUTO_COMMIT_INTERVAL_MS, PULL_THRESHOLD_FOR_ALL
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.options import ConsumerOptions, PushConsumerOptions, SimpleConsumerOptions
from libramq.client.producing.producer_settings import GROUP, ProducerOptions, ProducerSettings
from libramq.formats.properties_file import parse_properties
from libramq.transport import access, tls_options
from libramq.wire.kafka.api import APIS

from . import generated, modules

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
PAGES_WITH_PROPERTIES = [page for page in PAGES if "```properties" in page.read_text()]
_EXTERNAL = ("http://", "https://", "mailto:")


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_links_have_targets(page: Path):
    for target in links(page.read_text()):
        if target.startswith(_EXTERNAL):
            continue
        name, _, anchor = unquote(target).partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target} leads nowhere"
        if anchor and file.suffix == ".md":
            assert anchor in set(anchors(file.read_text())), f"{page.name}: there is no heading for {target}"


def test_names_of_the_package_on_pages_exist(page: Path):
    names = set(re.findall(r"\blibramq(?:\.\w+)+", page.read_text()))
    missing = {name for name in names if not exists(name) and not (ROOT / name).exists()}
    assert not missing - {"libramq.zip", "libramq.service"}  # Files.


def test_every_page_is_in_the_navigation_and_nothing_else():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"^\s+- .*?([\w/-]+\.md)$", text, re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert listed == pages | {"architecture.md", "changelog.md", "examples.md"}


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_readme_in_chinese_has_the_same_blocks_links_and_figures():
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))
    assert code_blocks(chinese) == code_blocks(english)
    pages = [[to for to in links(text) if not to.startswith(("#", "README"))] for text in (english, chinese)]
    assert sorted(pages[1]) == sorted(pages[0])
    assert headings_and_rows(chinese) == headings_and_rows(english)
    assert figures(chinese) == figures(english)


def code_blocks(text: str) -> list[tuple[str, str]]:
    tokens = MarkdownIt("commonmark").parse(text)
    return [(token.info, token.content) for token in tokens if token.type in {"fence", "code_block"}]


def headings_and_rows(text: str) -> list[str]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [token.tag for token in tokens if token.type in {"heading_open", "tr_open"}]


def figures(text: str) -> Counter[str]:
    """Return the numbers of a text outside its code, links and dates."""
    prose = re.sub(r"(?ms)^```.*?^```$|^    .*?$|\]\([^)]*\)|\d+ 月", "", text)
    return Counter(re.findall(r"\d[\d.,]*\d", prose)) - Counter(re.findall(r"\b\d{4}\b", prose))


def test_the_repositorys_address_and_authors_are_filled_in_at_one_place():
    text = (ROOT / "pyproject.toml").read_text()
    assert len(re.findall(r"^(?:# )?authors = ", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^(?:# )?urls = ", text, re.MULTILINE)) == 1
    urls = tomllib.loads(text)["project"].get("urls", {})
    for name in (
        "README.md",
        "README.zh.md",
        "docs/index.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "mkdocs.yml",
    ):
        named = re.findall(
            r"https?://(?:github|gitlab|gitee|codeberg)\.\w+/[\w./-]+", (ROOT / name).read_text()
        )
        assert [url for url in named if not url.startswith(urls.get("Repository", "nowhere"))] == [], name


@pytest.mark.parametrize("page", list(generated.pages()), ids=lambda page: page.name)
def test_generated_parts_equal_the_code(page: Path):
    text = page.read_text()
    assert generated.renewed(text) == text, "run python -m tests.docs.generated"


def test_every_module_says_in_a_few_lines_what_it_decides():
    rows = [row for _, _, rows in modules.packages() for row in rows]
    texts = {name: text for name, text, _ in rows if name != "__main__.py"}
    assert {name: text for name, text in texts.items() if not 40 <= len(text) <= 330} == {}


def test_every_generated_part_is_in_a_page():
    text = "".join(page.read_text() for page in generated.pages())
    assert {name for name in generated.PARTS if f"<!-- generated: {name} -->" in text} == set(generated.PARTS)


@pytest.mark.parametrize(
    ("heading", "client"),
    [
        ("Producer", Producer),
        ("PushConsumer", PushConsumer),
        ("Consumer", Consumer),
        ("SimpleConsumer", SimpleConsumer),
        ("Admin", Admin),
    ],
)
def test_options_of_clients_are_documented_with_their_defaults(heading: str, client: type):
    documented = dict(option_rows((ROOT / "docs" / "client-options.md").read_text(), heading))
    expected = defaults(client)
    assert set(documented) == set(expected)
    for name, shown in documented.items():
        # In words where a number would say little.
        if shown.startswith('"') or re.fullmatch(r"-?\d+|None|True|False", shown):
            assert shown == expected[name], f"{heading}: {name}"


#: Those whose options have their defaults in settings, as far as these are not found out.
SETTINGS: dict[type, tuple[Any, type]] = {
    PushConsumer: (PushConsumerOptions, ConsumerSettings),
    Consumer: (ConsumerOptions, ConsumerSettings),
    Producer: (ProducerOptions, ProducerSettings),
}


def defaults(client: type) -> dict[str, str]:
    """Return the options of a client and their defaults, as written on the page."""
    if client is SimpleConsumer:
        has_default = {"from_end": False, "prefetch": True}
        return {name: _written(has_default.get(name)) for name in SimpleConsumerOptions.__annotations__}
    if client not in SETTINGS:
        parameters = inspect.signature(client).parameters
        return {
            name: _written(parameter.default)
            for name, parameter in parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        }
    options, settings = SETTINGS[client]
    default = {field.name: field.default for field in fields(settings)}
    found = {name: default.get(name) for name in options.__annotations__}
    if client is Producer:
        found["group"] = GROUP
    else:
        found |= {"consume_from": "latest", "strategy": None}
    if client is Consumer:
        found |= {
            "auto_commit_interval_ms": AUTO_COMMIT_INTERVAL_MS,
            "pull_threshold_for_all": PULL_THRESHOLD_FOR_ALL,
        }
    return {name: _written(value) for name, value in found.items()}


def _written(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def option_rows(text: str, heading: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of the tables below a heading: each option and its default."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        names = re.findall(r"`(\w+)`", cells[0]) if len(cells) == 3 else []
        values = re.findall(r"`([^`]+)`", cells[1]) if names else []
        for place, name in enumerate(names):
            yield name, values[place] if len(values) == len(names) else values[0] if values else cells[1]


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda each: each.name
)
def test_pictures_fit_a_phone(picture: Path):
    """A page of 390 px leaves a picture 358; what is drawn with 12 px is read with 11."""
    text = picture.read_text()
    size = re.search(r'<svg [^>]*width="(\d+)" height="(\d+)" viewBox="0 0 (\d+) (\d+)"', text)
    assert size is not None
    width, height, *box = size.groups()
    assert [width, height] == box
    assert int(width) <= 400
    assert min(map(int, re.findall(r"font(?:-size)?: (\d+)px", text))) >= 12
    places = [float(at) for at in re.findall(r'<(?:text|rect|circle) c?x="([\d.]+)"', text)]
    assert max(places) < int(width)


def links(text: str) -> Iterator[str]:
    """Yield the targets of all links and pictures of a page."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target is not None:
                yield str(target)


def anchors(text: str) -> Iterator[str]:
    """Yield the anchors of a page's headings, as the site and code hosts generate them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            words = "".join(child.content for child in inline.children or ())
            yield re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words.lower()).strip())


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def test_every_dependency_has_a_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    required = {re.split(r"[\[<>=;]", each)[0] for group in groups for each in group} - {"libramq"}
    section = (ROOT / "docs" / "design" / "dependencies.md").read_text()
    reasons = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    explained = {name for cell in reasons for name in re.findall(r"`([\w-]+)`", cell)}
    assert required <= explained <= required | extras


def test_every_strategy_is_explained():
    # In a process of its own: other tests register theirs.
    ask = "from libramq.balance import strategy_named; strategy_named('none of these')"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    # The last line: the traceback above it may show the line that makes the text.
    names = re.findall(r"[\w-]+", asked.stderr.splitlines()[-1].partition("known are ")[2].partition(" (")[0])
    explained = (ROOT / "docs" / "strategies.md").read_text()
    assert {"AVG", "balanced_sticky"} <= set(names)
    assert [name for name in names if not re.search(rf"`{name}\b", explained)] == []


def test_every_api_of_kafka_is_listed_with_its_versions():
    section = (
        (ROOT / "docs" / "kafka.md").read_text().partition("\n## What is served\n")[2].partition("\n## ")[0]
    )
    listed = {}
    for _, names, versions, *_ in (line.split("|") for line in section.splitlines() if line.startswith("|")):
        listed |= dict(zip(names.strip().split(", "), versions.strip().split(", "), strict=True))
    served = {
        api.request.__name__.removesuffix("Request"): f"{api.first}–{api.last}" if api.last else "0"
        for api in APIS.values()
    }
    assert {name: listed.get(name) for name in served} == served


@pytest.mark.parametrize("page", PAGES_WITH_PROPERTIES, ids=lambda page: page.name)
def test_properties_on_pages_are_known_to_the_programs(page: Path):
    of_brokers = {option.metadata["name"] for option in fields(BrokerConfig) if option.metadata}
    for text in re.findall(r"```properties\n(.*?)```", page.read_text(), re.DOTALL):
        names = set(parse_properties(text))
        assert names <= of_brokers | set(tls_options.OPTIONS) or names <= set(access.NAMES)


def test_the_table_of_layers_lists_every_package():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"\w+", line) for line in contracts[0]["layers"]]
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("\n## Layers\n")[2].partition("\n###")[0]
    lines = section.replace("\\|", "").splitlines()
    rows = [line.split("|") for line in lines if re.match(r"\| [\d½]", line)]
    drawn = [re.findall(r"`(\w+)`", row[2].partition("(")[0]) for row in rows]
    assert drawn == layers
