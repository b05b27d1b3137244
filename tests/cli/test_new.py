"""Tests that ``hookbus new`` writes a plugin that installs, passes tests and takes part."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.support.environments import active, borrowing_environment
from tests.support.indexes import wheels_of_the_core

ROOT = Path(__file__).parents[2]
FILES = [
    ".github/workflows/tests.yml",
    ".gitignore",
    "LICENSE",
    "README.md",
    "hookbus_demo_hook/__init__.py",
    "hookbus_demo_hook/py.typed",
    "pyproject.toml",
    "setup.cfg",
    "tests/test_demo_hook.py",
]
LISTED = "".join(f"  {path}\n" for path in FILES)
TOLD = f"""\
wrote the plugin demo-hook into demo-hook:
{LISTED}
next:
  cd demo-hook
  pip install -e '.[test]'
  pytest
  hookbus run -p demo-hook SCRIPT
"""
NAMES = {
    "demo-hook": ("demo-hook", "DemoHook"),
    "my-hook-2": ("my-hook-2", "MyHook2Hook"),
    "a": ("a", "AHook"),
    "Loss_Printer": ("loss-printer", "LossPrinterHook"),
    "hookbus-x": ("x", "XHook"),
    "http-2": ("http-2", "Http2Hook"),
}
"""Names as they may be given: to the plugin's name and to the class."""
KINDS = ("value", "eval", "input", "torch")
"""The kinds of hooks to start from."""


def tree(folder) -> list[str]:
    """Return the files below a folder."""
    paths = sorted(Path(folder).rglob("*"))
    return [path.relative_to(folder).as_posix() for path in paths if path.is_file()]


def setup_of(folder) -> configparser.ConfigParser:
    """Read the setup.cfg of a folder."""
    setup = configparser.ConfigParser()
    setup.read(Path(folder, "setup.cfg"), "utf-8")
    return setup


def commands_of(folder, heading) -> list[str]:
    """Return the commands below a heading of the README of a folder."""
    text = Path(folder, "README.md").read_text("utf-8")
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\$ (.+)$", section, re.MULTILINE)


@pytest.fixture
def demo(hookbus) -> Path:
    """Write a plugin called demo-hook."""
    assert hookbus("new", "demo-hook").returncode == 0
    return Path("demo-hook").resolve()


@pytest.fixture(params=KINDS)
def each(hookbus, request) -> Path:
    """Write a plugin called demo-hook, like each kind in turn."""
    assert hookbus("new", "demo-hook", "--like", request.param).returncode == 0
    return Path("demo-hook").resolve()


@pytest.fixture
def borrowed() -> dict[str, str]:
    """Return the variables of an environment to install into, without an index."""
    environment = borrowing_environment(Path("environment").resolve())
    return environment | {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1"}


def test_it_writes_a_distribution_and_tells_what_comes_next(hookbus):
    """The files, and the commands with which one goes on."""
    done = hookbus("new", "demo-hook")
    assert (done.returncode, done.stdout, done.stderr) == (0, TOLD, "")
    assert tree("demo-hook") == FILES


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spelled", NAMES)
def test_one_name_becomes_all_names(spelled, hookbus, process):
    """Distribution, module, entry point and class follow from it, however it is spelled."""
    assert hookbus("new", spelled).returncode == 0
    name, hook = NAMES[spelled]
    module = f"hookbus_{name.replace('-', '_')}"
    setup = setup_of(spelled)
    assert setup["metadata"]["name"] == f"hookbus-{name}"
    assert setup["options"]["packages"].split() == [module]
    entry = setup["options.entry_points"]["hookbus"].strip()
    assert entry == f"{name} = {module}:{hook}"
    lint = [sys.executable, "-m", "ruff"]
    for command in (["check"], ["format", "--check"]):
        subprocess.run([*lint, *command, "--isolated", spelled], check=True)
    ran = process("-c", f"import {module} as m; print(m.{hook}())", PYTHONPATH=spelled)
    assert ran.stdout.startswith(f"{hook}(every=10, node='loss'")


def test_each_kind_has_the_same_files_in_good_style(each):
    """The kind of a hook changes the contents of its files, and nothing else."""
    assert tree(each) == FILES
    lint = [sys.executable, "-m", "ruff"]
    for command in (["check"], ["format", "--check"]):
        subprocess.run([*lint, *command, "--isolated", str(each)], check=True)
    assert "$" not in re.sub(r"^\$ ", "", (each / "README.md").read_text(), flags=re.M)
    for name in ("LICENSE", "pyproject.toml"):
        assert (each / name).read_bytes() == (ROOT / name).read_bytes()


def test_without_a_kind_it_is_like_value(demo, hookbus):
    """The hook that watches a value is the one that most start from."""
    assert hookbus("new", "--like=value", "demo-hook", "--directory=other").returncode == 0
    for path in FILES:
        assert (demo / path).read_bytes() == Path("other", path).read_bytes()


def test_it_goes_with_this_version_of_hookbus(demo):
    """It requires the core's minor version, and for its tests the core's extra."""
    setup = setup_of(demo)
    assert "hookbus>=0.1,<0.2" in setup["options"]["install_requires"].split()
    assert setup["options.extras_require"]["test"].split() == ["hookbus[testing]"]


def test_it_has_the_licence_and_the_build_backend_of_the_core(demo):
    """Apache-2.0, and nothing but the backend in pyproject.toml."""
    for name in ("LICENSE", "pyproject.toml"):
        assert (demo / name).read_bytes() == (ROOT / name).read_bytes()
    assert setup_of(demo)["metadata"]["license"] == "Apache-2.0"


@pytest.mark.page
def test_its_types_are_complete(each):
    """The package passes the strict type checker."""
    command = [sys.executable, "-m", "mypy", "--strict", "hookbus_demo_hook"]
    variables = os.environ | {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=each, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_its_workflow_runs_the_commands_of_the_readme(each):
    """Valid YAML, which checks out, sets Python up, and does what the README says."""
    flow = yaml.safe_load((each / ".github/workflows/tests.yml").read_text("utf-8"))
    steps = flow["jobs"]["tests"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == commands_of(each, "Tests")
    versions = flow["jobs"]["tests"]["strategy"]["matrix"]["python-version"]
    assert versions[0] == setup_of(each)["options"]["python_requires"].removeprefix(">=")
    classifiers = "\n".join(metadata("hookbus").get_all("Classifier", []))
    assert versions == re.findall(r"Python :: (3\.\d+)$", classifiers, re.M)


def shell(command, environment, folder=".") -> str:
    """Run a command as a user would, which must succeed; return all that it prints."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.mark.wheels
def test_its_tests_pass_in_a_fresh_environment(tmp_path):
    """Where only hookbus is installed, from its wheel, the README's commands suffice."""
    house = wheels_of_the_core(tmp_path, "pytest")
    venv.create(tmp_path / "fresh", symlinks=True, with_pip=True)
    fresh = active(tmp_path / "fresh") | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(house)}
    shell("pip install hookbus", fresh)
    shell("hookbus new demo-hook", fresh)
    install, tests, conformance = commands_of("demo-hook", "Tests")
    assert f"  cd demo-hook\n  {install}\n  {tests}\n" in TOLD
    shell(install, fresh, "demo-hook")
    assert " 5 passed" in shell(tests, fresh, "demo-hook")
    assert " passed" in shell(conformance, fresh, "demo-hook")


@pytest.mark.wheels
def test_the_tests_of_each_kind_pass(each, borrowed):
    """Its own and the conformance suite; those with PyTorch are skipped without it."""
    install, tests, conformance = commands_of(each, "Tests")
    shell(install, borrowed, each)
    assert " passed" in shell(tests, borrowed, each)
    if "torch" in conformance and find_spec("torch") is None:
        conformance = conformance.removesuffix(" --hook-backend torch")
    assert " passed" in shell(conformance, borrowed, each)


@pytest.mark.wheels
def test_switched_on_it_takes_part(demo, borrowed):
    """With the flags that its README tells, in a script that knows nothing of it."""
    shutil.copytree(ROOT / "examples", "examples")
    environment = borrowed
    shell(commands_of(demo, "Tests")[0], environment, demo)
    plain, with_settings = (
        command.replace("SCRIPT", "examples/digits.py")
        for command in commands_of(demo, "Settings")
    )
    shown = shell(plain, environment)
    assert "lowest so far step=1 node=loss" in shown
    assert "lowest so far step=11 node=loss" in shown
    shutil.rmtree("runs")
    shown = shell(with_settings, environment)
    assert "lowest so far step=101 node=loss" in shown
    assert "lowest so far step=11 node=loss" not in shown


@pytest.mark.wheels
def test_its_wheel_holds_the_package_and_the_licence(demo):
    """Neither tests nor anything else of the folder goes into it."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", "house", str(demo)]
    subprocess.run(command, check=True)
    (wheel,) = Path("house").iterdir()
    assert wheel.name == "hookbus_demo_hook-0.1.0-py3-none-any.whl"
    shutil.unpack_archive(wheel, "wheel", "zip")
    own = [path for path in tree("wheel") if ".dist-info/" not in path]
    assert own == ["hookbus_demo_hook/__init__.py", "hookbus_demo_hook/py.typed"]
    assert any(path.endswith("/LICENSE") for path in tree("wheel"))


def test_another_folder(hookbus):
    """--directory names the folder itself; one that is there must be empty."""
    Path("plugins/mine").mkdir(parents=True)
    done = hookbus("new", "demo-hook", "--directory", "plugins/mine")
    assert done.returncode == 0
    assert "  cd plugins/mine\n" in done.stdout
    assert tree("plugins/mine") == FILES
    done = hookbus("new", "--directory=a folder/two", "demo-hook")
    assert "  cd 'a folder/two'\n" in done.stdout
    assert tree("a folder/two") == FILES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "takes one name, but got none"),
        (["one", "two"], "takes one name, not 2: one two"),
        ([""], "'' is not a valid name for a plugin"),
        (["hookbus-"], "'hookbus-' names a part of hookbus"),
        (["2-late"], "'2-late' is not a valid name for a plugin"),
        (["my hook"], "'my hook' is not a valid name for a plugin"),
        (["plugins/mine"], "to choose the folder, use --directory"),
        (["grün"], "'grün' is not a valid name for a plugin"),
        (["hookbus-hookbus-x"], "'hookbus-hookbus-x' is not a valid name for a plugin"),
        (["class"], "'class' is a keyword of Python"),
        (["none"], "'none' is a keyword of Python"),
        (["Session"], "'Session' names a part of hookbus"),
        (["log-format"], "'log-format' would own the flag --log-format"),
        (["log"], "'log' would own the flag --log-format"),
        (["help"], "'help' would own the flag --help"),
        (["max"], "'max' would own the flag --max-steps"),
        (["averages"], "'averages' would own the flag --averages"),
        (["session-run"], "'session-run' names a part of hookbus"),
        (["NaN_Tensor"], "a plugin 'nan-tensor' is installed already, by hookbus-nan-te"),
        (["demo-hook", "--directory"], "--directory needs a folder after it"),
        (["demo-hook", "--directory="], "--directory needs a folder after it"),
        (["demo-hook", "--directori=x"], "did you mean '--directory'?"),
        (["demo-hook", "-f"], "takes --like KIND and --directory DIR, not -f"),
        (["demo-hook", "--like"], "--like needs a kind of hook after it"),
        (["demo-hook", "--like", "tensor"], "expected one of value, eval, input, torch"),
        (["demo-hook", "--like=inputs"], "did you mean 'input'?"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message, hookbus):
    """Exit code 4, one line that says what is wrong, and nothing is written."""
    done = hookbus("new", *arguments)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("ERROR: ")
    assert message in done.stderr
    assert list(Path().iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(hookbus):
    """Existing files may be somebody's work, and so may a file of that name."""
    Path("demo-hook").mkdir()
    Path("demo-hook/notes").touch()
    done = hookbus("new", "demo-hook")
    assert done.returncode == 4
    assert "demo-hook is not empty" in done.stderr
    assert tree("demo-hook") == ["notes"]
    Path("other").touch()
    done = hookbus("new", "demo-hook", "--directory", "other")
    assert done.returncode == 4
    assert "other is a file" in done.stderr


def test_a_folder_that_cannot_be_written_is_told(hookbus):
    """With the system's reason."""
    Path("file").touch()
    done = hookbus("new", "demo-hook", "--directory", "file/below")
    assert done.returncode == 4
    assert done.stderr == "ERROR: cannot write to file/below: Not a directory\n"


def test_help(hookbus):
    """--help tells the arguments, wherever it stands, and writes nothing."""
    for arguments in (["--help"], ["demo-hook", "-h"]):
        done = hookbus("new", *arguments)
        assert done.returncode == 0
        assert done.stdout.startswith(
            "usage: hookbus new NAME [--like KIND] [--directory DIR]\n"
        )
    assert list(Path().iterdir()) == []
