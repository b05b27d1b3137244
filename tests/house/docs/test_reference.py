"""The reference pages tell everything that there is, as it is."""

from __future__ import annotations

import functools
import inspect
import itertools
import re

import attrs
import pytest
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


def sections(root, name, level="h2"):
    """Return a reference page's sections: heading to text."""
    text = (root / "docs" / "reference" / name).read_text("utf-8")
    mark = "#" * int(level[1])
    parts = re.split(rf"^{mark} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_stands_with_its_arguments(root, event):
    """Each event has a section that begins with its exact signature."""
    arguments = ", ".join(EVENTS[event].parameters)
    section = sections(root, "events.md")[event]
    assert section.startswith(f"\n\n    {event}({arguments})\n")


def test_the_page_of_events_has_no_others(root):
    """What is no event has no section of an event."""
    signatures = {
        heading
        for heading, text in sections(root, "events.md").items()
        if text.startswith("\n\n    ")
    }
    assert signatures == set(EVENTS)


@pytest.mark.parametrize("name", sorted({*hookbus.__all__} - {*ERRORS, *MODULES}))
def test_a_public_name_has_a_section(root, name):
    """Each public name has a section of the API page, errors aside."""
    assert len(sections(root, "api.md")[name].split()) >= 5


def test_the_api_page_has_no_other_names(root):
    """A section of the API page is about a public name, a module, or about errors."""
    known = {*hookbus.__all__, *(f"hookbus.{name}" for name in MODULES)}
    assert set(sections(root, "api.md")) <= known


@pytest.mark.parametrize("module", sorted({*MODULES} - {"errors"}))
def test_a_public_module_has_its_functions_told(root, module):
    """The section of a module names each function that it has, or that it promises."""
    where = f"hookbus.{module}"
    text, found = sections(root, "api.md")[where], getattr(hookbus, module)
    functions = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if inspect.isfunction(value) and value.__module__ == where and name[0] != "_"
    ]
    assert functions
    for name in functions:
        assert re.search(rf"`(with )?{name}\(", text), name


def test_each_option_of_a_hook_is_told(root):
    """The table of HookOptions has all of them, in their order."""
    section = sections(root, "api.md")["HookOptions"]
    told = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", section, re.M)))
    assert told == [field.name for field in attrs.fields(hookbus.HookOptions)]


def test_all_errors_stand_in_the_api(root):
    """A table has the eleven that are names of hookbus; the text below has the others."""
    section = sections(root, "api.md")["hookbus.errors"]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.M)
    top = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(top) == sorted({*ERRORS} & {*hookbus.__all__})
    assert len(top) == 11
    assert {*re.findall(r"`(\w+Error)`", section)} == {*EVERY}


@pytest.mark.parametrize("name", EVERY)
def test_an_error_has_a_section(root, name):
    """Each error class has a section that tells what it means."""
    assert len(sections(root, "messages.md")[name].split()) >= 10


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_tells_what_else_it_is(root, name):
    """A section names, in brackets, the built-in errors that the class itself adds."""
    bases = [b.__name__ for b in vars(errors)[name].__bases__]
    told = re.match(r"\n\n\[(.*?)\]", sections(root, "messages.md")[name])
    added = [base for base in bases if base in ("ValueError", "TypeError", "RuntimeError")]
    assert (re.findall(r"\w+", told[1]) if told else []) == added


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_stands_on_the_command_line_page(root, flag):
    """Each flag of ``hookbus run`` has a row of the table."""
    assert f"\n| `{flag}` |" in sections(root, "command-line.md")["hookbus run"]


@pytest.mark.parametrize(("command", "flag"), OWN_FLAGS)
def test_a_commands_own_flag_stands_in_its_section(root, command, flag):
    """Each flag that only one of the commands has is in its table."""
    section = sections(root, "command-line.md")[f"hookbus {command}"]
    assert f"\n| `{flag}` |" in section


@pytest.mark.parametrize("variable", ENVIRONMENT)
def test_a_variable_has_a_section(root, variable):
    """Each environment variable that hookbus reads has a section."""
    assert variable in sections(root, "environment.md")


@pytest.mark.parametrize("code", hookbus.ExitCode)
def test_an_exit_code_stands_in_the_table(root, code):
    """Each exit code has a row with its number and name."""
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
    tokens = MarkdownIt().parse(path.read_text("utf-8"))
    pairs = itertools.pairwise(tokens)
    return {slug(inline.content) for token, inline in pairs if token.type == "heading_open"}


def links(path):
    """Return the targets of a page's links."""
    tokens = MarkdownIt().enable("table").parse(path.read_text("utf-8"))
    inline = [child for token in tokens for child in token.children or ()]
    return [child.attrGet("href") for child in inline if child.type == "link_open"]


def test_links_lead_somewhere(page):
    """A relative link leads to a file that is there, its anchor to a heading of it."""
    for link in links(page):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), f"{page}: {link}"
        assert not anchor or anchor in headings(target), f"{page}: {link}"


def test_every_page_can_be_reached(root, pages):
    """Each page of the documentation is linked from its index."""
    index = root / "docs" / "index.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    told = {page for page in pages if page.parent.is_relative_to(root / "docs")}
    assert told == {index} | {
        page for page in reached if page.is_relative_to(root / "docs")
    }
