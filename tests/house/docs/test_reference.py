"""The reference pages tell everything that there is, as it is."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import re

import attrs
import pytest
import yaml
from hookbus_estimator.commands.evaluate import evaluate as evaluate
from hookbus_estimator.commands.predict import predict as predict
from hookbus_estimator.commands.train import train as train
from markdown_it import MarkdownIt

import hookbus
from hookbus import errors as errors
from hookbus.cli.checkpoints import FLAGS as CHECKPOINTS_FLAGS
from hookbus.cli.export import FLAGS as EXPORT_FLAGS
from hookbus.cli.flags import FLAGS
from hookbus.config.sources import ENVIRONMENT
from hookbus.hooks import hookspecs as hookspecs
from hookbus.hooks.hookspecs import PROJECT
from tests.support.distributions import HOOKS, TRACKERS
from tests.support.pages import REPOSITORY, ROOT

EVENTS = {
    name: inspect.signature(function)
    for name, function in vars(hookspecs).items()
    if hasattr(function, f"{PROJECT}_spec")
}
ERRORS = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.HookbusError)
]
EVERY = [*ERRORS, "SessionStoppedError"]  # which is no Exception


MODULES = [name for name in hookbus.__all__ if inspect.ismodule(getattr(hookbus, name))]
"""The modules beside the package itself whose names are public."""
SHARED = {"--input MODULE:FN", "--model-dir DIR"}
"""The flags that the section of ``hookbus train`` describes for all three commands."""
OWN_FLAGS = [
    *(("train", flag) for flag in train.flags),
    *(
        (c.name, flag)
        for c in (evaluate, predict)
        for flag in c.flags
        if flag not in SHARED
    ),
    *(("export", flag) for flag in EXPORT_FLAGS),
    *(("checkpoints", flag) for flag in CHECKPOINTS_FLAGS),
]


@attrs.frozen
class Directive:
    """A place on a page of the API where the site shows an object with its docstring."""

    page: str
    path: str
    members: tuple[str, ...] = ()


def directives():
    """Yield the directives of all pages of the API."""
    for page in sorted((ROOT / "docs/reference/api").glob("*.md")):
        blocks = re.findall(r"^::: (\S+)\n((?: {4}.*\n)*)", page.read_text("utf-8"), re.M)
        for path, given in blocks:
            options = (yaml.safe_load(given) or {}).get("options", {})
            yield Directive(page.stem, path, tuple(options.get("members", ())))


DIRECTIVES = [*directives()]


def named(path):
    """Return the object that a directive names."""
    importlib.import_module("hookbus.testing")
    found = hookbus
    for name in path.split(".")[1:]:
        found = getattr(found, name)
    return found


@functools.cache
def sections(root, name, level="h2"):
    """Return a reference page's sections: heading to text."""
    text = (root / "docs" / "reference" / name).read_text("utf-8")
    mark = "#" * int(level[1])
    parts = re.split(rf"^{mark} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_an_event_stands_with_its_arguments(root):
    """Each event has a section that begins with its exact signature."""
    for event in EVENTS:
        arguments = ", ".join(EVENTS[event].parameters)
        section = sections(root, "events.md")[event]
        assert section.startswith(f"\n\n    {event}({arguments})\n")


def test_the_page_of_events_has_no_others(root):
    """Only events have the section of an event."""
    signatures = {
        heading
        for heading, text in sections(root, "events.md").items()
        if text.startswith("\n\n    ")
    }
    assert signatures == set(EVENTS)


def test_a_public_name_stands_on_one_page_of_the_api():
    """Each public name has one directive, on which its section of the site is made."""
    for name in hookbus.__all__:
        assert [d.path for d in DIRECTIVES].count(f"hookbus.{name}") == 1


def test_the_pages_of_the_api_have_no_other_names():
    """A directive is about a public name, or about one of a module that is promised."""
    known = {f"hookbus.{name}" for name in hookbus.__all__} | {"hookbus.testing"}
    starts = ("hookbus.testing.", "hookbus.tracking.")
    others = [d.path for d in DIRECTIVES if d.path not in known]
    assert [path for path in others if not path.startswith(starts)] == []


def test_a_directive_leads_to_code():
    """Each directive names an object, and each of its members is one of that object."""
    for directive in DIRECTIVES:
        shown = named(directive.path)
        fields = getattr(shown, "__annotations__", {})
        for member in directive.members:
            assert hasattr(shown, member) or member in fields, member


def test_the_index_of_the_api_leads_to_a_directive(root):
    """A row for each name links its place, for readers who do not see the site."""
    for directive in DIRECTIVES:
        if directive.path.startswith(("hookbus.testing.", "hookbus.tracking.")):
            name = f"`{directive.path.rpartition('.')[2]}`"  # in the row of the module
            link = f"({directive.page}.md#{directive.path.rpartition('.')[0]})"
        else:
            name = directive.path.removeprefix("hookbus.")
            name = (
                f"`{directive.path if inspect.ismodule(named(directive.path)) else name}`"
            )
            link = f"[{name}]({directive.page}.md#{directive.path})"
        text = (root / "docs/reference/api/index.md").read_text("utf-8")
        rows = [
            row for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE) if link in row
        ]
        assert len(rows) == 1
        assert name in rows[0]
        assert len(rows[0].partition(" | ")[2].split()) >= 3


def test_the_index_of_the_api_leads_to_every_page(root):
    """Each page has a section of the index, which links it."""
    pages = {path.name for path in (root / "docs/reference/api").glob("*.md")}
    headings = sections(root, "api/index.md")
    linked = {match[1] for h in headings if (match := re.fullmatch(r"\[.+\]\((.+)\)", h))}
    assert linked == pages - {"index.md"}


@pytest.mark.parametrize("module", sorted({*MODULES, "testing"} - {"errors"}))
def test_a_public_module_has_its_names_shown(module):
    """The directives of a module show each name that it promises, and no other one."""
    where = f"hookbus.{module}"
    found = importlib.import_module(where)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if getattr(value, "__module__", None) == where and name[0] != "_"
    ]
    members = [m for d in DIRECTIVES if d.path == where for m in d.members]
    alone = [d.path.removeprefix(where + ".") for d in DIRECTIVES]
    shown = [*members, *(name for name in alone if "." not in name)]
    assert names
    assert sorted(shown) == sorted(names)


@pytest.mark.parametrize("name", ["HookOptions", "SessionRunArgs", "RunConfig", "Scaffold"])
def test_each_argument_is_told(name):
    """The docstring of a class with many arguments has all of them."""
    shown = getattr(hookbus, name)
    told = re.findall(r"^ {4}(\w+): ", inspect.getdoc(shown).partition("Args:")[2], re.M)
    assert [a for a in inspect.signature(shown).parameters if a not in told] == []


def test_all_errors_stand_in_the_api(root):
    """A table has the eleven that are names of hookbus; the text below has the others."""
    text = (root / "docs/reference/api/errors.md").read_text("utf-8").partition(":::")[0]
    rows = re.findall(r"^\| (\[`[^|]*) \|", text, re.M)
    top = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(top) == sorted({*ERRORS} & {*hookbus.__all__})
    assert len(top) == 11
    assert {*re.findall(r"`(\w+Error)`", text)} == {*EVERY}


def test_an_error_has_a_section(root):
    """Each error class has a section that tells what it means."""
    for name in EVERY:
        assert len(sections(root, "messages.md")[name].split()) >= 10


def test_an_error_tells_what_else_it_is(root):
    """A section names, in brackets, the built-in errors that the class itself adds."""
    for name in ERRORS:
        bases = [b.__name__ for b in vars(errors)[name].__bases__]
        told = re.match(r"\n\n\[(.*?)\]", sections(root, "messages.md")[name])
        added = [
            base for base in bases if base in ("ValueError", "TypeError", "RuntimeError")
        ]
        assert (re.findall(r"\w+", told[1]) if told else []) == added


def test_a_flag_stands_on_the_command_line_page(root):
    """Each flag of ``hookbus run`` has a row of the table."""
    for flag in FLAGS:
        assert f"\n| `{flag}` |" in sections(root, "command-line.md")["hookbus run"]


def test_a_commands_own_flag_stands_in_its_section(root):
    """Each flag that only one of the commands has is in its table."""
    for command, flag in OWN_FLAGS:
        section = sections(root, "command-line.md")[f"hookbus {command}"]
        assert f"\n| `{flag}` |" in section


def test_a_variable_has_a_section(root):
    """Each environment variable that hookbus reads has a section."""
    for variable in ENVIRONMENT:
        assert variable in sections(root, "command-line.md", "h3")


def test_an_exit_code_stands_in_the_table(root):
    """Each exit code has a row with its number and name."""
    for code in hookbus.ExitCode:
        text = (root / "docs/reference/exit-codes.md").read_text("utf-8")
        assert f"\n| {int(code)} | `{code.name}` |" in text


def test_the_plugins_stand_in_the_table(root):
    """The page of plugins lists the distributions that there are."""
    text = (root / "docs/reference/plugins.md").read_text("utf-8")
    listed = re.findall(r"^\| \[([\w-]+)\]", text, flags=re.MULTILINE)
    assert listed == [f.name.removeprefix("hookbus-") for f in [*HOOKS, *TRACKERS]]


def slug(heading):
    """Return the anchor that a heading gets, as forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@functools.cache
def headings(path):
    """Return the anchors of a page."""
    text = path.read_text("utf-8")
    pairs = itertools.pairwise(MarkdownIt().parse(text))
    found = {slug(inner.content) for token, inner in pairs if token.type == "heading_open"}
    return found | {*re.findall(r"^::: (\S+)$", text, re.MULTILINE)}  # on the site


@functools.cache
def links(path):
    """Return the targets of a page's links."""
    tokens = MarkdownIt().enable("table").parse(path.read_text("utf-8"))
    inline = [child for token in tokens for child in token.children or ()]
    return [child.attrGet("href") for child in inline if child.type == "link_open"]


def test_links_lead_somewhere(pages):
    """A relative link leads to a file that is there, its anchor to a heading of it."""
    inside = f"{REPOSITORY}/blob/main/"
    found = [(page, link) for page in pages for link in links(page)]
    for place, link in found:
        if "://" in link and not link.startswith(inside):
            continue
        name, _, anchor = link.removeprefix(inside).partition("#")
        folder = ROOT if link.startswith(inside) else place.parent
        target = (folder / name).resolve() if name else place
        assert target.is_file(), f"{place}: {link}"
        assert not anchor or anchor in headings(target), f"{place}: {link}"


def test_every_page_can_be_reached(root, pages):
    """Each page of the documentation is two clicks from its index."""
    index = root / "docs" / "index.md"
    reached = {index}
    for _ in range(2):
        reached |= {
            target
            for page in reached
            for link in links(page)
            if "://" not in link
            and (target := (page.parent / link.partition("#")[0]).resolve()).suffix == ".md"
        }
    told = {page for page in pages if page.parent.is_relative_to(root / "docs")}
    assert told - reached == set()
