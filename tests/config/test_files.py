"""Tests which config file counts, what it says, and in which line it says it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import UsageError
from hookbus.config import files as files
from hookbus.config.files import LOADERS, ConfigFile, find

SECTIONS = {
    "hookbus.toml": ('plugins = ["a", "no:b"]\n[nan-tensor]\nevery = 3\n'),
    "pyproject.toml": (
        '[project]\nname = "x"\n[tool.hookbus]\nplugins = ["a", "no:b"]\n'
        "[tool.hookbus.nan-tensor]\nevery = 3\n"
    ),
    "tox.ini": (
        "[tox]\n[hookbus]\nplugins =\n  a\n  no:b\n[hookbus.nan-tensor]\nevery = 3\n"
    ),
    "setup.cfg": "[tool:hookbus]\nplugins = a, no:b\n[tool:hookbus.nan-tensor]\nevery: 3\n",
}
EMPTY = {
    "pyproject.toml": '[project]\nname = "hookbus-x"\n',
    "tox.ini": "[tox]\nrequires = hookbus\n",
    "setup.cfg": "[metadata]\nname = hookbus-x\n",
}


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


def found(directory: str = ".") -> ConfigFile:
    file = find(Path(directory).absolute())
    assert file is not None
    return file


@pytest.mark.parametrize("name", SECTIONS)
def test_every_kind_of_file_says_the_same(name):
    """One section for hookbus, one for each plugin; values arrive as text."""
    write(name, SECTIONS[name])
    own, plugin = found().entries
    assert (own.plugin, own.key) == ("", "plugins")
    assert own.value in (("a", "no:b"), "a, no:b", "\na\nno:b")
    assert (plugin.plugin, plugin.key, plugin.value) == ("nan-tensor", "every", "3")
    line = 1 + SECTIONS[name].splitlines().index(
        next(text for text in SECTIONS[name].splitlines() if text.startswith("every"))
    )
    assert plugin.source == f"{name}:{line}"


def test_the_strongest_name_of_a_folder_counts_alone():
    """Nothing is merged; files beside it that have a section are told."""
    for name, text in SECTIONS.items():
        write(name, text)
    names = list(LOADERS)
    for place, name in enumerate(names):
        assert (found().name, found().ignored) == (name, tuple(names[place + 1 :]))
        Path(name).unlink()
    assert find(Path.cwd()) is None


@pytest.mark.parametrize("name", EMPTY)
def test_a_file_without_a_section_is_passed_by(name):
    """The search goes on above; hookbus.toml is ours even if it is empty."""
    write("setup.cfg", SECTIONS["setup.cfg"])
    write(f"sub/deep/{name}", EMPTY[name])
    assert found("sub/deep").name == "setup.cfg"
    write("sub/hookbus.toml", "")
    assert (found("sub/deep").name, found("sub/deep").entries) == ("sub/hookbus.toml", ())


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("hookbus.toml", "plugins = []\nautoload = maybe\n", 2),
        ("pyproject.toml", "[tool.hookbus]\nplugins = [\n\n[x]\n", 4),
        ("tox.ini", "[hookbus]\nplugins = a\nwhat is this\n", 3),
        ("setup.cfg", "[tool:hookbus]\nplugins = a\nplugins = b\n", 3),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(name, text, line):
    """It is an error of usage, never a traceback of the parser."""
    write(name, text)
    with pytest.raises(UsageError, match=rf"^{name}:{line}: syntax error: "):
        found()


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize(
    "content",
    [b"[[[\n= =\n", b"plugins = a  # hookbus\n", b"[tox]\ndeps=hookbus\ndeps=x\n", b"\xe9"],
)
def test_a_mistake_in_a_file_of_others_is_not_ours(name, content):
    """A file without a section of hookbus is not even parsed, nor decoded."""
    Path(name).write_bytes(content)
    assert find(Path.cwd()) is None


@pytest.mark.parametrize("name", SECTIONS)
def test_a_mark_of_the_byte_order_is_passed_over(name):
    """Some editors put one at the front."""
    Path(name).write_bytes(b"\xef\xbb\xbf" + SECTIONS[name].encode())
    assert len(found().entries) == 2


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.cfg"])
def test_a_mistake_in_a_file_that_does_not_count_is_no_error(name):
    """An ignored file cannot stop a run."""
    write("hookbus.toml", "")
    write(name, "[tool:hookbus\n[[[ hookbus")
    assert (found().name, found().ignored) == ("hookbus.toml", ())


def test_the_usual_slip_in_setup_cfg_is_explained():
    """There the section bears a prefix."""
    write("setup.cfg", "[hookbus]\nplugins = a\n")
    message = r"^setup.cfg: \[hookbus\] is not read .*; put its keys in \[tool:hookbus\]$"
    with pytest.raises(UsageError, match=message):
        found()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nan-tensor]\nx = {a = 1}\n", r"hookbus.toml:2: x: expected text.*not dict"),
        ("plugins = [[1]]\n", r"hookbus.toml:1: plugins: expected text.*not list"),
        ("x = 2026-01-01\n", r"hookbus.toml:1: x: expected text.*not date"),
        (f"plugins = {'[' * 2000}", r"hookbus.toml: a value is nested too deeply"),
        (f"x = {'{a=' * 2000}1{'}' * 2000}\n", r"hookbus.toml: a value is nested too deep"),
        (f"x = {'9' * 5000}\n", r"hookbus.toml: .* a number has too many digits"),
        (f"x = 0x{'9' * 5000}\n", r"hookbus.toml:1: x: the number has too many digits"),
    ],
    ids=["table", "list", "date", "brackets", "braces", "digits", "hexadecimal"],
)
def test_a_value_without_a_text_form_is_refused(text, message):
    """A setting of a file could also be given on the command line."""
    write("hookbus.toml", text)
    with pytest.raises(UsageError, match=message):
        found()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", "\n" * 200_000 + "[hookbu"),
        ("hookbus.toml", 'log_level = """\n[' + " " * 20_000 + '\n"""\n'),
        ("hookbus.toml", "[" * 20_000),
        ("setup.cfg", "[tool:hookbus]\n[" + " " * 20_000),
    ],
    ids=["lines", "blanks", "brackets", "ini"],
)
def test_a_file_is_read_in_time_in_proportion_to_its_size(name, text):
    """No file keeps a command from starting: each of these took minutes, or more."""
    write(name, text)
    with contextlib.suppress(UsageError):
        find(Path.cwd())


def test_a_file_that_is_named_has_to_be_there_and_to_say_something():
    """``-c FILE`` takes any name that tells how to read it."""
    with pytest.raises(UsageError, match=r"the config file no\.toml: No such"):
        files.read(Path("no.toml"), named=True)
    with pytest.raises(UsageError, match="has no section for hookbus"):
        files.read(write("x.ini", "[other]\n"), named=True)
    with pytest.raises(UsageError, match=r"ends in \.toml, \.ini or \.cfg"):
        files.read(write("x.yaml", ""), named=True)
    file = files.read(write("my.cfg", SECTIONS["setup.cfg"]), named=True)
    assert file is not None
    assert len(file.entries) == 2


def test_a_file_that_is_no_text_is_told():
    """Nor is one that cannot be decoded a reason for a traceback."""
    Path("hookbus.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"the config file hookbus\.toml"):
        found()


names = st.from_regex(r"[a-z][a-z_-]{0,8}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["C"]))
values = st.one_of(st.booleans(), st.integers(), texts, st.lists(texts, max_size=3))
tables = st.dictionaries(names, st.dictionaries(names, values, max_size=4), max_size=4)


def toml(value: object) -> str:
    """Write a value as TOML; for these, JSON is."""
    return json.dumps(value, ensure_ascii=False)


@given(tables, st.data())
def test_every_key_is_found_in_its_line(sections, data):
    """Whatever stands around it: blank lines, comments, other sections."""
    lines, places = [], {}
    for section, keys in sections.items():
        lines.append(f"[{section}]")
        for key, value in keys.items():
            lines += ["# a remark = 1"] * data.draw(st.integers(0, 2))
            lines.append(f"{key} = {toml(value)}")
            places[section, key] = len(lines)
    Path("hookbus.toml").write_text("\n".join(lines), "utf-8")
    file = found()
    assert {(e.plugin, e.key): int(e.source.split(":")[1]) for e in file.entries} == places


OTHERS = {
    "in UTF-16": "[tool.black]\nline-length = 88  # é\n".encode("utf-16"),
    "in UTF-16 without a mark": "[tool]\nblack.name = 'a'\n".encode("utf-16-le"),
    "in Latin-1": '[tool]\nblack.name = "é"\n'.encode("latin-1"),
    "broken": b"[tool]\nblack.name =\n",
    "with a null byte": b"[tool]\nblack.name = 'a\0'\n",
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_mistake_in_the_file_of_another_tool_is_not_told(case):
    """A file without a section for hookbus is not read, whatever is wrong with it."""
    Path("pyproject.toml").write_bytes(OTHERS[case])
    assert find(Path().absolute()) is None


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_that_is_not_in_utf_8_is_not_lost(name, coding):
    """The settings in it would have no effect, so the message says how to save them."""
    Path(name).write_bytes(SECTIONS[name].encode(coding))
    told = f"cannot read the config file {name}: it has null bytes, like UTF-16; save it as"
    with pytest.raises(UsageError, match=told):
        find(Path().absolute())


def test_a_section_in_latin_1_is_told_too():
    """The place of the first letter that is not UTF-8 is in the message."""
    Path("hookbus.toml").write_bytes(b'plugins = ["\xe4"]')
    told = "^cannot read .*hookbus.toml: .* in position 12: .*; save it as UTF-8$"
    with pytest.raises(UsageError, match=told):
        find(Path().absolute())
