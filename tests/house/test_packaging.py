"""Tests that all plugins have one layout, and that nothing else is at the top."""

from __future__ import annotations

import configparser
import functools
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from hookbus.config.config import Config
from hookbus.config.declared import is_switch
from hookbus.config.parser import Precedence as Place
from hookbus.config.parser import read_flags
from hookbus.config.settings import fields_of, flag_of
from hookbus.discovery import installed_plugins
from tests.support.distributions import COMMANDS, EVERY
from tests.support.distributions import HOOKS as FOLDERS

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    ".ci",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "docs",
    "examples",
    "hookbus",
    "mkdocs.yml",
    "plugins",
    "pyproject.toml",
    "setup.cfg",
    "tests",
    "tox.ini",
}
IMPORTED_AS = {"opentelemetry-sdk": "opentelemetry", "pillow": "PIL"}
"""Distributions whose module has another name."""
SHARED = {
    "metadata": [
        "version",
        "long_description",
        "long_description_content_type",
        "license",
        "license_files",
        "author",
        "classifiers",
    ],
    "options": ["python_requires"],
}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request) -> Path:
    """Return each plugin's folder in turn."""
    return request.param


@pytest.fixture
def setup(folder) -> configparser.ConfigParser:
    """Return the plugin's setup.cfg."""
    return read(folder / "setup.cfg")


@functools.cache
def read(path: Path) -> configparser.ConfigParser:
    """Read a setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(path, "utf-8")
    return parser


def entries_of(setup: configparser.ConfigParser) -> dict[str, str]:
    """Return the entry points in the group hookbus: name to module:attribute."""
    lines = setup["options.entry_points"]["hookbus"].strip().splitlines()
    return dict(re.split(r"\s*=\s*", line) for line in lines)


def packages_of(setup: configparser.ConfigParser) -> list[str]:
    """Return the packages that setup.cfg lists."""
    return setup["options"]["packages"].split()


def blocks(folder: Path, language: str) -> list[str]:
    """Return the code blocks of a language in the README of a folder."""
    text = (folder / "README.md").read_text("utf-8")
    found = re.findall(rf"^```{language}\b.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return list(found)


def test_the_top_level_is_fixed():
    """Nothing else is kept at the top of the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = {path.split("/")[0] for path in listed.stdout.split("\0") if path}
    assert {name for name in found if not name.startswith(".git")} <= TOP_LEVEL


def test_the_requirements_name_every_distribution():
    """plugins/requirements.txt installs the core and exactly the plugins that there are."""
    lines = (ROOT / "plugins" / "requirements.txt").read_text("utf-8").splitlines()
    plugins = [f"-e plugins/{folder.name}" for folder in sorted({*FOLDERS, *COMMANDS})]
    assert lines == ["-e .", *plugins]


def test_the_extra_all_names_every_plugin():
    """``pip install "hookbus[all]"`` installs exactly the plugins that there are."""
    extra = read(ROOT / "setup.cfg")["options.extras_require"]["all"].split()
    every = sorted({*FOLDERS, *COMMANDS})
    assert extra == [f"{folder.name}>=0.1,<0.2" for folder in every]


PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def test_the_classifiers_name_the_versions_of_python_that_are_tested():
    """They are those that the workflow runs the tests on, in every distribution."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == PYTHONS
    for place in (ROOT, *EVERY):
        text = read(place / "setup.cfg")["metadata"]["classifiers"]
        assert (
            re.findall(r"^Programming Language :: Python :: (3\.\d+)$", text, re.M)
            == PYTHONS
        )


def test_the_matrix_has_the_lowest_version_of_each_library():
    """A row asks for the lowest versions that the metadata of distributions allow."""
    promised: dict[str, set[str]] = {}
    for place in (ROOT, *EVERY):
        for line in read(place / "setup.cfg")["options"]["install_requires"].split():
            name, _, lowest = re.split("(>=)", line.partition(",")[0])
            if not name.startswith("hookbus"):
                promised.setdefault(name, set()).add(lowest)
    rows = runpy.run_path(str(ROOT / ".ci/matrix.py"))["ROWS"]
    tried = dict(pin.split("==") for row in rows for pin in row.oldest)
    assert tried.keys() == promised.keys()
    for name, lowest in promised.items():
        assert all(f"{tried[name]}.".startswith(f"{one}.") for one in lowest), name


def test_the_readme_names_the_versions_of_python_that_are_tested():
    """All of them, so that nobody has to try."""
    *first, last = PYTHONS
    promise = f"You need Python {', '.join(first)} or {last}"
    assert promise in " ".join((ROOT / "README.md").read_text("utf-8").split())


def test_every_folder_below_plugins_is_a_distribution():
    """A folder without setup.cfg would be overlooked everywhere."""
    folders = {path for path in ROOT.glob("plugins/*") if path.is_dir()}
    assert {path for path in folders if path.name != "__pycache__"} == set(EVERY)


def test_a_plugin_has_all_parts():
    """Metadata, build backend, description, licence and tests."""
    for folder in EVERY:
        for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
            assert (folder / name).is_file(), name
        assert list((folder / "tests").glob("test_*.py"))


def test_a_plugin_is_under_the_licence_of_the_core():
    """The licence's text is the same everywhere."""
    for folder in EVERY:
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_every_package_of_a_plugin_has_types():
    """Type checkers read the types of packages that ship py.typed, and of no others."""
    for folder in EVERY:
        setup = read(folder / "setup.cfg")
        assert "Typing :: Typed" in setup["metadata"]["classifiers"]
        for package in (name for name in packages_of(setup) if "." not in name):
            assert "py.typed" in setup["options.package_data"][package]
            assert (folder / package / "py.typed").read_bytes() == b""


def test_an_editable_install_is_a_folder_on_the_path():
    """With package_dir, setuptools writes a path. A finder would hide types."""
    for place in (ROOT, *EVERY):
        assert read(place / "setup.cfg")["options"]["package_dir"].split() == ["=."]


def test_an_sdist_leaves_the_tests_out():
    """They need those of the whole repository; setuptools would pack a part of them."""
    for place in (ROOT, *EVERY):
        assert (place / "MANIFEST.in").read_text("utf-8") == "prune tests\n"


def test_pyproject_names_the_build_backend_only():
    """All else is in setup.cfg, and the same backend builds every distribution."""
    for place in (ROOT, *EVERY):
        said = tomllib.loads((place / "pyproject.toml").read_text("utf-8"))
        assert said == {
            "build-system": {
                "requires": ["setuptools>=77"],
                "build-backend": "setuptools.build_meta",
            }
        }


def test_all_plugins_are_described_in_one_shape(setup):
    """Sections and keys come in the same order in every setup.cfg."""
    assert {section: list(setup[section]) for section in setup.sections()[:2]} == {
        "metadata": [
            "name",
            "version",
            "description",
            "long_description",
            "long_description_content_type",
            "license",
            "license_files",
            "author",
            "project_urls",
            "keywords",
            "classifiers",
        ],
        "options": ["package_dir", "packages", "python_requires", "install_requires"],
    }
    rest = [name for name in setup.sections()[2:] if name != "options.extras_require"]
    assert rest == ["options.package_data", "options.entry_points"]


def test_all_plugins_share_version_licence_and_python():
    """The shared lines are alike in every setup.cfg, and in the core's."""
    for folder in EVERY:
        setup = read(folder / "setup.cfg")
        model = read(FOLDERS[0] / "setup.cfg")
        core = read(ROOT / "setup.cfg")
        for section, keys in SHARED.items():
            for key in keys:
                assert setup[section][key] == model[section][key], key
        for section, key in [
            ("metadata", "version"),
            ("metadata", "license"),
            ("metadata", "author"),
            ("options", "python_requires"),
        ]:
            assert setup[section][key] == core[section][key], key


REPOSITORY = "https://github.com/hookbus/hookbus"
SHORT = ("hookbus-certify", "hookbus-estimator", "hookbus-live")
"""Distributions that have an extra of their own, and are in ``hookbus[all]``."""


def test_the_metadata_lead_to_the_repository():
    """Each address names this repository, and what lies there in a file or folder of it."""
    for place in (ROOT, *EVERY):
        metadata = read(place / "setup.cfg")["metadata"]
        lines = metadata["project_urls"].strip().splitlines()
        urls = dict(re.split(r"\s*=\s*", line) for line in lines)
        assert list(urls) == ["Documentation", "Source", "Changelog", "Issues"]
        assert urls["Source"] == REPOSITORY
        assert urls["Issues"] == f"{REPOSITORY}/issues"
        shown = urls["Documentation"].removeprefix(f"{REPOSITORY}/tree/main/")
        assert shown == ("docs" if place == ROOT else f"plugins/{place.name}")
        assert (ROOT / urls["Changelog"].removeprefix(f"{REPOSITORY}/blob/main/")).is_file()
        own = "pluggy" if place == ROOT else place.name.removeprefix("hookbus-")
        assert metadata["keywords"].split(", ")[-1] == own


def test_the_whole_repository_names_one_address():
    """CITATION.cff and the templates for issues lead where the metadata lead."""
    for name in ("CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml"):
        found = re.findall(r"https://github\.com/[\w/-]+", (ROOT / name).read_text("utf-8"))
        assert found
        assert all(f"{url}/".startswith(f"{REPOSITORY}/") for url in found), name


@pytest.mark.parametrize("name", ["bug", "feature", "plugin"])
def test_a_template_for_issues_is_a_form(name):
    """It has a name, a description and fields; the first one is required."""
    path = ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml"
    form = yaml.safe_load(path.read_text("utf-8"))
    assert (form["name"], form["labels"]) == (name.capitalize(), [name])
    assert form["description"]
    assert form["body"][0]["validations"] == {"required": True}
    ids = [field["id"] for field in form["body"]]
    assert len({*ids}) == len(ids)


def test_every_distribution_has_an_extra_of_the_core():
    """``hookbus[NAME]`` installs hookbus-NAME: each that ``hookbus[all]`` leaves out."""
    extras = dict(read(ROOT / "setup.cfg")["options.extras_require"])
    assert extras.pop("testing").split() == ["pytest>=8"]
    every = extras.pop("all").split()
    for name, required in extras.items():
        assert required.split() == [f"hookbus-{name}>=0.1,<0.2"]
    left_out = [path.name for path in EVERY if f"{path.name}>=0.1,<0.2" not in every]
    assert {f"hookbus-{name}" for name in extras} == {*left_out, *SHORT}


def test_all_distributions_are_released_together():
    """They have one version, which CITATION.cff names."""
    for place in (ROOT, *EVERY):
        version = read(ROOT / "setup.cfg")["metadata"]["version"]
        assert read(place / "setup.cfg")["metadata"]["version"] == version
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
        assert citation["version"] == version


def test_names_follow_from_the_folder(folder, setup):
    """Distribution, entry point and module bear the plugin's one name."""
    plugin = folder.name.removeprefix("hookbus-")
    module = folder.name.replace("-", "_")
    (entry,) = entries_of(setup).items()
    assert setup["metadata"]["name"] == folder.name
    assert entry[0] == plugin
    assert entry[1].partition(":")[0] == module
    assert packages_of(setup)[0] == module


def test_every_package_of_a_plugin_is_shipped():
    """setup.cfg lists the packages in the folder, all and no other; a module is in one."""
    for folder in EVERY:
        inits = [
            path.relative_to(folder) for path in folder.glob("hookbus_*/**/__init__.py")
        ]
        found = {".".join(path.parent.parts) for path in inits}
        assert set(packages_of(read(folder / "setup.cfg"))) == found
        assert {path.name for path in folder.glob("*.py")} <= {"conftest.py"}


def test_entry_points_lead_to_modules_that_are_shipped(setup):
    """Every entry point of every group names something in setup.cfg."""
    shipped = set(packages_of(setup))
    for group, text in setup["options.entry_points"].items():
        for line in text.strip().splitlines():
            module, _, attribute = line.partition("=")[2].strip().partition(":")
            assert module.partition(".")[0] in shipped, group
            assert not attribute or hasattr(import_module(module), attribute)


ADAPTERS = {f"hookbus-{n}" for n in ("ignite", "keras", "lightning", "transformers")}


def test_a_plugin_depends_on_the_core_and_on_no_other_plugin():
    """Each can be installed alone; the core's next minor version may break it."""
    for folder in EVERY:
        setup = read(folder / "setup.cfg")
        required = setup["options"]["install_requires"].split()
        assert required[0] == "hookbus>=0.1,<0.2"
        others = {re.split("[<>=]", n)[0] for n in required[1:] if n.startswith("hookbus")}
        # An adapter packs states with the codec, and its trainer trains with a library.
        also = {"hookbus-checkpoint-saver", "hookbus-torch"}
        assert others <= (also if folder.name in ADAPTERS else set())


def test_a_plugin_imports_no_other_plugin():
    """Nor does its code; and of the core it takes public names only."""
    for folder in EVERY:
        own = {path.stem for path in folder.glob("*") if path.name.startswith("hookbus")}
        for path in folder.glob("**/*.py"):
            if "tests" in path.parts:
                continue
            text = path.read_text("utf-8")
            imported = set(
                re.findall(r"^\s*(?:from|import) (hookbus[\w.]*)", text, re.MULTILINE)
            )
            others = {name for name in imported if name.partition(".")[0] not in own}
            topics = (
                "backend",
                "commands",
                "errors",
                "evaluating",
                "files",
                "tracking",
                "validation",
            )
            assert others <= {"hookbus", *(f"hookbus.{n}" for n in topics)}, path.name


def test_a_plugin_requires_what_it_imports(folder, setup):
    """Every top-level import is the standard library's, the plugin's own or required."""
    required = re.findall(r"^[A-Za-z0-9_-]+", setup["options"]["install_requires"], re.M)
    imports = [IMPORTED_AS.get(name, name) for name in required]
    known = {*sys.stdlib_module_names, *packages_of(setup), *imports}
    known.add("tensorboard")  # reads event files, where it is installed
    for path in [*folder.glob("*.py"), *folder.glob("hookbus_*/*.py")]:
        text = path.read_text("utf-8")
        imported = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.M))
        assert imported <= known, path.name


def test_the_readme_names_every_setting(folder, setup):
    """Each field of the hook class stands there, with its flag."""
    ((plugin, value),) = entries_of(setup).items()
    module, _, attribute = value.partition(":")
    text = (folder / "README.md").read_text("utf-8")
    for field in fields_of(getattr(import_module(module), attribute)):
        assert f"`{field}`" in text
        assert re.search(rf"`{flag_of(plugin, field)}[` ]", text), field


def test_the_command_lines_in_the_readme_are_understood(folder):
    """Every flag in a `hookbus run` line belongs to a plugin that has that setting."""
    lines = "".join(blocks(folder, "console")).replace("\\\n", " ").splitlines()
    commands = [line for line in lines if line.startswith("$ hookbus run")]
    assert commands
    installed = installed_plugins()
    for command in commands:
        said = read_flags(shlex.split(command)[3:], Place.COMMAND, is_switch=is_switch)
        assert said.rest, command
        for setting in Config.gathered(said, {}).settings:
            fields = fields_of(installed.plugins[setting.plugin].entry.load())
            assert setting.field in ("", *fields), command


def test_the_examples_in_the_readme_run(folder, capsys):
    """Every Python block of a README runs as it stands, one after the other."""
    examples = blocks(folder, "python")
    assert examples
    names: dict[str, object] = {"__name__": "__main__"}
    for example in examples:
        exec(compile(example, str(folder / "README.md"), "exec"), names)
    assert "Traceback" not in capsys.readouterr().err
