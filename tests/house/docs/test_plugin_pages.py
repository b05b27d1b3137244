"""Each plugin has one page, its README, which agrees with the class."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import types
import typing
from pathlib import Path

import attrs
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from hookbus import SessionRunHook
from hookbus.config.settings import ON_ERROR, fields_of, flag_of
from hookbus.config.settings import schema_of as form_of
from hookbus.discovery import installed_plugins
from tests.support.distributions import HOOKS, TRACKERS

ROOT = Path(__file__).parents[3]
INDEX = ROOT / "docs" / "reference" / "plugins.md"
FOLDER = ROOT / "docs" / "reference" / "plugins"
TRACKER_PLUGINS = [folder.name.removeprefix("hookbus-") for folder in TRACKERS]
HERE = installed_plugins().plugins
PLUGINS = [folder.name.removeprefix("hookbus-") for folder in HOOKS]
PLUGINS += [name for name in TRACKER_PLUGINS if name in HERE]
EVERY = sorted({*PLUGINS, *TRACKER_PLUGINS})
FIRST = ["On the command line", "In code", "Settings", "When it fires"]


@attrs.frozen
class Row:
    """A setting's row in the table of a page, in Markdown."""

    setting: str
    type: str
    default: str
    flags: str


@attrs.frozen
class Page:
    """A plugin's page.

    Attributes:
        plugin: the plugin's name.
        text: all of it.
        parts: the tokens below each heading of the second level.
    """

    plugin: str
    text: str
    parts: dict[str, list[Token]]

    @property
    def rows(self) -> list[Row]:
        """The table of settings, its head included."""
        cells = [token.content for token in self.parts["Settings"] if token.level == 4]
        return [Row(*cells[start : start + 4]) for start in range(0, len(cells), 4)]

    def fences(self, part: str, language: str) -> list[Token]:
        """Return the fenced blocks of a language in a part."""
        fences = [token for token in self.parts[part] if token.type == "fence"]
        return [fence for fence in fences if fence.info.split()[0] == language]


@pytest.fixture(params=PLUGINS)
def page(request):
    """Return each plugin's page in turn."""
    return read(request.param)


@functools.cache
def read(plugin: str) -> Page:
    """Read the page of a plugin."""
    text = (FOLDER / f"{plugin}.md").read_text("utf-8")
    parts, part = {}, []
    for before, token in itertools.pairwise(MarkdownIt().enable("table").parse(text)):
        if before.type == "heading_open" and before.tag == "h2":
            parts[token.content] = part = []
        part.append(token)
    return Page(plugin, text, parts)


@pytest.fixture
def hook(page):
    """Return the class of the page's plugin."""
    return installed_plugins().plugins[page.plugin].entry.load()


@pytest.fixture
def rows(page):
    """Return the row of each setting on the page."""
    return {row.setting.strip("`"): row for row in page.rows[1:]}


def test_the_folder_has_a_page_for_each_plugin():
    """And no other."""
    assert sorted(page.name for page in FOLDER.iterdir()) == [f"{n}.md" for n in EVERY]


@pytest.mark.parametrize("plugin", EVERY)
def test_a_page_is_the_readme_of_its_distribution(plugin):
    """It is a relative link, so that the two cannot differ."""
    page, readme = FOLDER / f"{plugin}.md", ROOT / f"plugins/hookbus-{plugin}/README.md"
    assert str(page.readlink()) == f"../../../plugins/hookbus-{plugin}/README.md"
    assert page.read_bytes() == readme.read_bytes()


def test_the_index_leads_to_the_pages():
    """A row for each, under the plugin's name."""
    links = re.findall(r"^\| \[(.+)\]\((.+)\) \|", INDEX.read_text("utf-8"), re.MULTILINE)
    hooks = [folder.name.removeprefix("hookbus-") for folder in HOOKS]
    every = [*hooks, *TRACKER_PLUGINS]
    assert links == [(plugin, f"plugins/{plugin}.md") for plugin in every]


def test_a_page_leads_out_of_no_place(page):
    """It is read in the documentation, in the repository and in an index of packages."""
    tokens = MarkdownIt().enable("table").parse(page.text)
    inline = [child for token in tokens for child in token.children or ()]
    targets = [child.attrGet("href") or child.attrGet("src") for child in inline]
    assert all("://" in target for target in targets if target is not None)


def test_a_page_begins_like_all_others(page):
    """The distribution's name, what it does, and how it gets here."""
    name = f"hookbus-{page.plugin}"
    title, about, install = page.text.split("\n\n")[:3]
    assert title == f"# {name}"
    assert " ".join(about.split()).endswith(". It is a plugin of hookbus.")
    assert install == f"    pip install {name}"


def test_a_page_has_the_parts_of_all_others(page):
    """A reader sees first how to use it, then what can be set and when it acts."""
    assert [*page.parts][: len(FIRST)] == FIRST


def test_a_page_says_when_the_hook_fires_in_a_table(page):
    """One can look it up."""
    assert "table_open" in [token.type for token in page.parts["When it fires"]]


def test_the_table_has_each_setting(page, hook, rows):
    """The fields of the class in their order, and on_error where the class declares it."""
    declared = (
        [ON_ERROR] if hook.options.on_error != SessionRunHook.options.on_error else []
    )
    assert page.rows[0] == Row("setting", "type", "default", "flags")
    assert list(rows) == [*fields_of(hook), *declared]


def test_the_table_tells_the_types(hook, rows):
    """Where the field is a number, a truth value or text, it says so."""
    for field, (hint, _) in fields_of(hook).items():
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        plain = [option for option in options if option is not types.NoneType]
        if len(plain) == 1 and plain[0] in (int, float, bool, str):
            assert rows[field].type.startswith(f"`{plain[0].__name__}`"), field


def test_the_table_tells_the_defaults(hook, rows):
    """The default of the class, the value that flags take instead, and its meaning."""
    defaults = {field: default for field, (_, default) in fields_of(hook).items()}
    for setting, row in rows.items():
        default = defaults.get(setting, hook.options.on_error)
        must = default is inspect.Parameter.empty
        told = "must be given" if must else f"`{default!r}`"
        if setting in hook.options.default_settings:
            told += f"; from flags `{hook.options.default_settings[setting]!r}`"
        assert row.default == told or row.default.startswith(f"{told}: "), setting


def test_the_table_tells_the_flags(page, hook, rows):
    """The one of the plugin stands at its main setting."""
    main = form_of(hook, page.plugin).main
    for setting, row in rows.items():
        own = [f"--{page.plugin}"] if setting == main else []
        flags = re.findall(r"`([^`]+)`", row.flags)
        assert flags == [*own, flag_of(page.plugin, setting)], setting


def test_a_script_without_hooks_is_run_with_the_flags(page):
    """It knows nothing of the plugin that the command switches on."""
    script = page.fences("On the command line", "python")[0]
    assert script.info == 'python title="train.py"'
    assert not re.search(r"hookbus_|[Hh]ook\b|hooks", script.content)
    console = "".join(b.content for b in page.fences("On the command line", "console"))
    commands = re.findall(
        r"^\$ (hookbus run .*)$", console.replace("\\\n", ""), re.MULTILINE
    )
    switch = re.compile(rf"(--|-p ){page.plugin}\b.* train\.py\b")
    assert any(switch.search(command) for command in commands)


def test_the_code_makes_the_hook_and_sees_what_it_did(page, hook):
    """The first example imports the class, and asserts, or shows what it prints."""
    example = page.fences("In code", "python")[0].content
    assert re.search(
        rf"^from {hook.__module__.partition('.')[0]} import .*\b{hook.__name__}\b",
        example,
        re.M,
    )
    assert re.search(r"^ *assert ", example, re.M) or page.fences("In code", "output")
