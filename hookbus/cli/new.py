"""Writes a plugin distribution to start from: a hook, its tests and its pages."""

from __future__ import annotations

import keyword
import re
import shlex
import string
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import attrs

import hookbus
from hookbus.cli.export import FLAGS as EXPORT_FLAGS
from hookbus.config.keys import FLAGS
from hookbus.discovery import CORE, canonical_name, installed_plugins
from hookbus.errors import ExitCode, UsageError, did_you_mean

USAGE = """\
usage: hookbus new NAME [--like KIND] [--directory DIR]

Write a plugin called NAME into the folder NAME: a working hook, tests, a
README, a license (Apache-2.0) and a workflow that runs the tests.

  --like KIND      the hook to start from (default: value)
                     value  checks a value of the training every few steps
                     eval   sees each batch of evaluations and predictions
                     input  changes the values of an input
                     torch  looks into a PyTorch model, by names
  --directory DIR  write it into DIR instead, which must be empty or not exist
  -h, --help       show this help
"""
_TEMPLATES = {
    "workflow.yml": ".github/workflows/tests.yml",
    "gitignore": ".gitignore",
    "LICENSE": "LICENSE",
    "README.md": "README.md",
    "$like/hook.txt": "$module/__init__.py",
    "py.typed": "$module/py.typed",
    "pyproject.toml": "pyproject.toml",
    "setup.cfg": "setup.cfg",
    "test.txt": "tests/test_$identifier.py",
}
"""Template to the file that it becomes. The folder ``$like`` has what plugins differ in."""
_LIKE = ("value", "eval", "input", "torch")
"""The kinds of hooks to start from, the default first."""
_FLAGS = {"--like": "a kind of hook", "--directory": "a folder"}
"""Each flag to what it needs."""
_OF_ESTIMATOR = (
    *("--input", "--model-dir", "--steps", "--max-steps", "--name", "--checkpoint-path"),
    *("--output", "--predict-keys", "--batches"),
)
"""The flags of the commands of hookbus-estimator."""
_OWN_FLAGS = (
    *(*FLAGS, "--help", "--json", "--load", "--version", "--directory", "--like"),
    *(f.split()[0] for f in EXPORT_FLAGS),
    *_OF_ESTIMATOR,
)
"""The flags of hookbus itself, which no plugin may own."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@attrs.frozen
class Naming:
    """A plugin's name, and the names derived from it.

    >>> naming = Naming("loss-printer")
    >>> naming.distribution, naming.module, naming.hook
    ('hookbus-loss-printer', 'hookbus_loss_printer', 'LossPrinterHook')
    >>> Naming("demo-hook").hook
    'DemoHook'
    """

    name: str

    @property
    def identifier(self) -> str:
        """The name as an identifier."""
        return self.name.replace("-", "_")

    @property
    def distribution(self) -> str:
        """The name of the distribution."""
        return f"hookbus-{self.name}"

    @property
    def module(self) -> str:
        """The name of the package."""
        return f"hookbus_{self.identifier}"

    @property
    def hook(self) -> str:
        """The name of the class, which ends in ``Hook`` once."""
        words = [word.capitalize() for word in self.name.split("-")]
        return "".join(words).removesuffix("Hook") + "Hook"

    def render(self, text: str, parts: Mapping[str, str] = MappingProxyType({})) -> str:
        """Fill names, the versions of hookbus to require, and parts into a template."""
        keys = ("name", "identifier", "distribution", "module", "hook")
        names = {key: getattr(self, key) for key in keys}
        versions = _compatible(version("hookbus"))
        return string.Template(text).substitute(parts, **names, versions=versions)


def new(arguments: Sequence[str]) -> int:
    """Write a plugin, and print its files and the next steps.

    Raises:
        UsageError: an argument is missing or unknown, the name is invalid or taken, or the
            folder is not empty or not writable.
    """
    if "-h" in arguments or "--help" in arguments:
        print(USAGE, end="")
        return ExitCode.OK
    spelled, given = _parse(arguments)
    naming = Naming(_checked(spelled))
    folder = Path(given.get("--directory", spelled.strip()))
    try:
        written = _write(naming, given.get("--like", _LIKE[0]), folder)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from error
    print(_summary(naming, folder, written), end="")
    return ExitCode.OK


def _parse(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the name as given, and the values of the flags that are given."""
    words, names = list(arguments), []
    given: dict[str, str] = {}
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if flag in _FLAGS:
            given[flag] = value if equals else words.pop(0) if words else ""
            if not given[flag]:
                raise UsageError(f"{flag} needs {_FLAGS[flag]} after it")
        elif word.startswith("-"):
            hint = did_you_mean(word, _FLAGS)
            raise UsageError(
                f"hookbus new takes --like KIND and --directory DIR, not {word}{hint}"
            )
        else:
            names.append(word)
    like = given.get("--like", _LIKE[0])
    if like not in _LIKE:
        hint = did_you_mean(like, _LIKE)
        raise UsageError(f"--like {like}: expected one of {', '.join(_LIKE)}{hint}")
    if len(names) != 1:
        got = f"not {len(names)}: {' '.join(names)}" if names else "but got none"
        raise UsageError(f"hookbus new takes one name, {got} (hookbus new NAME)")
    return names[0], given


def _checked(spelled: str) -> str:
    """Return the plugin's name if it is valid and free."""
    name = canonical_name(spelled)
    if not _NAME.fullmatch(name) or canonical_name(name) != name:
        raise UsageError(
            f"{spelled!r} is not a valid name for a plugin: use letters, digits and "
            "dashes, and begin with a letter, like loss-printer (to choose the folder, "
            "use --directory)"
        )
    if any(map(keyword.iskeyword, (name, name.capitalize()))):
        raise UsageError(f"{spelled!r} is a keyword of Python; choose another name")
    flags = [flag for flag in _OWN_FLAGS if f"{flag}-".startswith(f"--{name}-")]
    if name in CORE or flags or hasattr(hookbus, Naming(name).hook):
        what = f"would own the flag {flags[0]}" if flags else "names a part of hookbus"
        raise UsageError(f"{spelled!r} {what}; choose another name")
    taken = installed_plugins().find(name)
    if taken is not None:
        raise UsageError(
            f"a plugin {name!r} is installed already, by {taken.shipped_by}; choose "
            f"another name, or uninstall it first: pip uninstall {taken.distribution}"
        )
    return name


def _write(naming: Naming, like: str, folder: Path) -> list[str]:
    """Write all files into the empty folder and return their paths in it."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; choose another folder with --directory")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; choose another with --directory")
    written, parts = [], _parts(naming, like)
    for template, target in _TEMPLATES.items():
        path = folder / naming.render(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(naming.render(_read(template, like), parts), "utf-8")
        written.append(path.relative_to(folder).as_posix())
    return sorted(written)


def _parts(naming: Naming, like: str) -> dict[str, str]:
    """Return the parts in which one kind of hook differs from others, by name."""
    parts = {"imports": "", "more_tests": "", "suite": ""}
    parts |= tomllib.loads(_read("$like/about.toml", like))
    parts["tests"] = _read("$like/test.txt", like)
    return {name: naming.render(text).rstrip() for name, text in parts.items()}


def _read(template: str, like: str) -> str:
    path = files(__package__) / "template" / template.replace("$like", like)
    return path.read_text("utf-8")


def _summary(naming: Naming, folder: Path, written: Sequence[str]) -> str:
    lines = [f"wrote the plugin {naming.name} into {folder}:"]
    lines += [f"  {path}" for path in written]
    lines += ["", "next:", f"  cd {shlex.quote(str(folder))}"]
    lines += ["  pip install -e '.[test]'", "  pytest"]
    lines += [f"  hookbus run -p {naming.name} SCRIPT"]
    return "\n".join(lines) + "\n"


def _compatible(installed: str) -> str:
    """Return the versions of hookbus that a plugin written for one of them works with.

    Before 1.0, a minor version may break plugins; later, only a major version may.

    >>> _compatible("0.1.3"), _compatible("2.4.0")
    ('>=0.1,<0.2', '>=2.4,<3')
    """
    major, minor = map(int, installed.split(".")[:2])
    return f">={major}.{minor},<{major + 1 if major else f'0.{minor + 1}'}"
