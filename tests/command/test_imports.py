"""Tests that a plugin which is off is not imported, however it was switched off."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from hookbus.testing import fake_dist

LOUD = """\
import pathlib
import hookbus

with pathlib.Path({log!r}).open("a") as log:
    print(__name__, file=log)

class LoudHook(hookbus.SessionRunHook):
    every: int = 10

@hookbus.hookimpl
def begin(): ...
"""
KINDS = {
    "module": {"hookbus": {"loud": "fake_loud"}},
    "class": {"hookbus": {"loud": "fake_loud:LoudHook"}},
    "autouse": {
        "hookbus": {"loud": "fake_loud:LoudHook"},
        "hookbus.autouse": {"loud": "fake_loud"},
    },
}
SWITCH = {
    "-p no:": {"flags": ["-p", "no:loud"]},
    "-pno:": {"flags": ["-pno:loud"]},
    "by its distribution": {"flags": ["-p", "no:hookbus-loud"]},
    "by its module": {"flags": ["-p", "no:fake_loud"]},
    "in other letters": {"flags": ["-p", "no:LOUD"]},
    "as the last word": {"flags": ["-p", "loud", "-p", "no:loud"]},
    "above the environment": {
        "flags": ["-p", "no:loud"],
        "env": {"HOOKBUS_PLUGINS": "loud"},
    },
    "above a setting": {
        "flags": ["-p", "no:loud"],
        "env": {"HOOKBUS_ADDOPTS": "--loud-every 5"},
    },
    "above the code": {
        "flags": ["-p", "no:loud"],
        "session": "config=Config.current().with_options('loud', every=5)",
    },
    "HOOKBUS_PLUGINS": {"env": {"HOOKBUS_PLUGINS": "no:loud"}},
    "HOOKBUS_ADDOPTS": {"env": {"HOOKBUS_ADDOPTS": "-p no:loud"}},
    "hookbus.toml": {
        "files": {"hookbus.toml": "plugins = ['no:loud']\n[loud]\nevery = 5\n"}
    },
    "pyproject.toml": {
        "files": {"pyproject.toml": "[tool.hookbus]\nplugins = 'no:loud'\n"}
    },
    "tox.ini": {"files": {"tox.ini": "[hookbus]\naddopts = -p no:loud\n"}},
    "setup.cfg": {"files": {"setup.cfg": "[tool:hookbus]\nplugins = no:loud\n"}},
    "-c": {
        "flags": ["-c", "my.ini"],
        "files": {"my.ini": "[hookbus]\nplugins = no:loud\n"},
    },
    "-o plugins": {"flags": ["-o", "plugins=no:loud"]},
    "with_plugins": {"session": "config=Config.current().with_plugins('no:loud')"},
}
"""Every way to switch a plugin off by its name."""
AUTOLOAD = {
    "--disable-plugin-autoload": {"flags": ["--disable-plugin-autoload"]},
    "the variable": {"env": {"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "yes"}},
    "the variable of flags": {"env": {"HOOKBUS_ADDOPTS": "--disable-plugin-autoload"}},
    "-o autoload": {"flags": ["-o", "autoload=false"]},
    "a file": {"files": {"hookbus.toml": "autoload = false\n[loud]\nevery = 5\n"}},
    "the code": {"session": "config=Config(autoload=False)"},
}
"""Every way to have nothing on by itself."""


@pytest.fixture
def imports(tmp_path, process, write, script) -> Callable[..., list[str]]:
    """Return a function that runs a command and tells which modules were imported."""
    log = tmp_path / "imports.txt"

    def imports(
        kind: str, command: str = "run", flags: Any = (), session: str = "", **said: Any
    ) -> list[str]:
        source = LOUD.format(log=str(log))
        fake_dist(tmp_path, "hookbus-loud", KINDS[kind], modules={"fake_loud": source})
        write(said.get("files", {}))
        script("train.py", session)
        words = [*command.split(), *flags, *(["train.py"] if command == "run" else [])]
        done = process(
            "-m", "hookbus", *words, path=[tmp_path], environment=said.get("env")
        )
        assert done.returncode == 0, done.stderr
        found = log.read_text("utf-8").split() if log.exists() else []
        if command == "run":  # the script looks into sys.modules
            assert ("fake_loud" in done.stdout) == bool(found)
        return found

    return imports


@pytest.mark.sampled(15)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", SWITCH)
def test_a_plugin_that_is_switched_off_is_not_imported(kind, way, imports):
    """Its name, in any spelling and place, is enough; its metadata were."""
    assert imports(kind, **SWITCH[way]) == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", AUTOLOAD)
def test_a_plugin_that_is_not_on_by_itself_is_not_imported(kind, way, imports):
    """Without autoload nothing is that nobody names; a class never is."""
    assert imports(kind, **AUTOLOAD[way]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_that_is_on_is_imported_once(kind, imports):
    """So the file that it writes when it is imported would be there."""
    assert imports(kind, flags=["-p", "loud"]) == ["fake_loud"]


@pytest.mark.parametrize(
    "command", ["plugins", "plugins --json", "why loud", "--help", "--version"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_commands_that_tell_about_plugins_import_none(kind, command, imports):
    """Not even one that is on."""
    flags = [] if command.startswith("-") else ["-p", "loud"]
    assert imports(kind, command, flags) == []


@pytest.mark.parametrize("command", ["hooks", "run --help", "plugins --load"])
def test_commands_that_ask_plugins_leave_out_those_that_are_off(command, imports):
    """Whatever is on has to be asked, and nothing else."""
    assert imports("module", command, ["-p", "no:loud"]) == []


def test_a_hook_of_the_code_is_kept_out_and_its_module_stays(imports):
    """The script itself has imported it; it takes no part in the session."""
    session = "hooks=[installed('fake_loud')]"
    assert imports("class", flags=["-p", "no:loud"], session=session) == ["fake_loud"]


def test_an_export_without_its_codec_says_what_to_install(process):
    """The core alone writes no such file."""
    words = ("export", "runs", "--tracked", "model", "model.safetensors")
    done = process("-m", "hookbus", *words)
    assert (done.returncode, done.stderr) == (
        4,
        "ERROR: no codec for files with the suffix '.safetensors' is installed; a file "
        "'.safetensors' needs hookbus-checkpoint-saver (pip install "
        "hookbus-checkpoint-saver); installed codecs: none\n",
    )


def test_a_plugin_in_a_zip_file_is_listed(tmp_path, process):
    """Python imports from there as well, so that a source may be no file."""
    fake_dist(tmp_path / "site", "hookbus-loud", KINDS["module"], modules={"fake_loud": ""})
    archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "site")
    done = process("-m", "hookbus", "plugins", path=[archive])
    assert (done.returncode, done.stderr) == (0, "")
    assert "loud" in done.stdout


def test_the_folder_of_a_package_is_not_imported_either(tmp_path, process):
    """To see whether a module is there, nothing around it is run."""
    source = "raise SystemExit('imported')\n"
    points = {"hookbus": {"deep": "fake_deep.inner.module:DeepHook"}}
    modules = dict.fromkeys(
        ("fake_deep", "fake_deep.inner", "fake_deep.inner.module"), source
    )
    fake_dist(tmp_path, "hookbus-deep", points, modules=modules)
    done = process("-m", "hookbus", "why", "fake_deep.inner.module", path=[tmp_path])
    assert (done.returncode, done.stderr) == (0, "")
    assert "deep is off: not switched on" in done.stdout
