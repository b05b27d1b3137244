"""Distributions with odd metadata, or with code that raises odd errors at import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hookbus import CheckpointError
from hookbus.checkpoint.codec import load_codec
from hookbus.testing import fake_dist
from tests.support.commands import Done

LOUD = "\x1b[31mred\x1b]0;title\x07\u202e"
"""A text that a terminal would act on."""
ENTRIES = {
    "loud": b"[hookbus]\nloud = fake_plain\n\x1b[2J = fake_plain\n",
    "gaps": b"[hookbus]\nno equals sign\ngaps = fake_plain\nempty =\n= fake_plain\n",
    "latin": b"[hookbus]\nl\xe4rm = fake_plain\nlatin = fake_plain\n",
    "dashes": b"[hookbus]\n- = fake_plain\n... = fake_plain\na b = fake_plain\n"
    b"no:x = fake_plain\ndashes = fake_plain\n",
    "value": b"[hookbus]\nvalue = fake_plain:\x1b[31m\n[hookbus.autouse]\nwhat\n",
}
"""Distribution to its entry points: one that is good, and others that are not."""
FOREIGN = {
    "script": b"[console_scripts]\nno equals sign\n\xff\xfe = \x1b\n",
    "bytes": bytes(range(256)),
    "brackets": b"[" * 10_000,
}
"""Odd contents of distributions that have nothing to do with hookbus."""
PLAIN = "import hookbus\n\n@hookbus.hookimpl\ndef begin(): ...\n"
COMMANDS = [
    ("--help",),
    ("--version",),
    ("plugins",),
    ("plugins", "-v"),
    ("plugins", "--json"),
    ("why", "loud"),
    ("hooks",),
    ("run", "--help"),
    ("run", "empty.py"),
]


def ship(site: Path, name: str, entries: bytes, about: str = "", code: str = "") -> None:
    """Install a distribution, as it is or is not to be."""
    info = site / f"fake_{name}-1.0.dist-info"
    info.mkdir()
    known = about or f"Name: fake-{name}\nVersion: 1.0\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{known}", "utf-8")
    (info / "entry_points.txt").write_bytes(entries)
    (site / f"fake_{name}.py").write_text(code or PLAIN, "utf-8")


@pytest.fixture
def littered(site: Path) -> Path:
    """Install all distributions with odd metadata, beside those that are there."""
    loud = f"Name: fake-{LOUD}\nVersion: 1.0{LOUD}\nSummary: {LOUD}\n"
    for name, entries in {**ENTRIES, **FOREIGN}.items():
        ship(site, name, entries, f"{loud}Requires-Dist: {LOUD}\n" * (name == "loud"))
    ship(site, "nameless", b"[hookbus]\nnameless = fake_plain\n", "Summary: x\n")
    ship(site, "headless", b"[hookbus]\nheadless = fake_plain\n", "\n\n")
    ship(site, "plain", b"")
    (site / "fake_folder-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    (site / "fake_empty-1.0.dist-info").mkdir()
    Path("empty.py").touch()
    return site


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("littered")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_odd_metadata_break_no_command_and_reach_no_terminal(
    command: tuple[str, ...], hookbus: Callable[..., Done]
) -> None:
    """Each command does its work, and prints no character that a terminal acts on."""
    done = (
        hookbus(*command, "-p", "no:value") if command[0][0] != "-" else hookbus(*command)
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for text in (done.stdout, done.stderr):
        assert [c for c in text if not c.isprintable() and c != "\n"] == []


@pytest.mark.usefixtures("littered")
def test_a_fault_of_a_distribution_is_named_and_hides_nothing_else(hookbus) -> None:
    """The other entry points of the same distribution are there, and all others."""
    done = hookbus("plugins", "-v")
    for name in (*ENTRIES, "nameless", "headless", "progress"):
        assert f"\n{name} is " in done.stdout
    for fault in (
        r"fake-\x1b[31mred\x1b]0;title\x07\u202e 1.0",
        "fake-gaps 1.0: the line 'no equals sign' in [hookbus] of its entry_points.txt",
        "fake-gaps 1.0: the line 'empty ='",
        "fake-gaps 1.0: the line '= fake_plain'",
        r"fake-latin 1.0: the line 'l\\xe4rm = fake_plain'",
        "fake-dashes 1.0: the line '- = fake_plain'",
        "fake-dashes 1.0: the line '... = fake_plain'",
        "fake-dashes 1.0: the line 'a b = fake_plain'",
        "fake-dashes 1.0: the line 'no:x = fake_plain'",
        "fake-value 1.0: the line 'what' in [hookbus.autouse]",
    ):
        assert fault in done.stderr
    assert not [name for name in FOREIGN if f"fake-{name} " in done.stderr]
    assert "value is broken: " in done.stdout


RAISES = {
    "SystemExit": ("raise SystemExit(0)", 3),
    "GeneratorExit": ("raise GeneratorExit", 3),
    "Own": ("class Own(BaseException): ...\nraise Own('broken')", 3),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", 2),
    "OSError": ("def __getattr__(name):\n    raise OSError('broken')", 3),
    "MemoryError": ("raise MemoryError", 3),
    "RecursionError": ("def again(): again()\nagain()", 3),
}
"""Code that the import of a plugin raises in, and the exit code of a run."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("error", RAISES)
def test_whatever_the_import_of_a_plugin_raises_names_the_plugin(
    error: str, hookbus: Callable[..., Done], site: Path
) -> None:
    """A run does not start; a command that only shows plugins goes on without it.

    KeyboardInterrupt may have been Ctrl-C, so it ends the command.
    """
    code, exits = RAISES[error]
    ship(site, "bad", b"[hookbus]\nbad = fake_bad\n", code=code)
    Path("empty.py").write_text(
        "import hookbus\nwith hookbus.MonitoredTrainingSession(): ...\n", "utf-8"
    )
    done = hookbus("run", "empty.py")
    assert (done.returncode, "Traceback" in done.stderr) == (exits, False), done.stderr
    assert "plugin 'bad'" in done.stderr
    shown = hookbus("hooks")
    assert "Traceback" not in shown.stderr
    if error == "KeyboardInterrupt":
        assert "interrupted\n  hookbus: raised while plugin 'bad' was loaded" in done.stderr
        assert shown.returncode == 2
    else:
        assert error in done.stderr
        assert "uninstall fake-bad" in done.stderr
        assert (shown.returncode, f"bad: broken: {error}" in shown.stdout) == (0, True)
    assert hookbus("run", "-p", "no:bad", "empty.py").returncode == 5


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"aaa": "fake_other:Codec"}, ""),
        ({"Safetensors2": "nowhere"}, ""),
        (
            {"safetensors": "fake_other:Codec"},
            "two distributions provide the checkpoint codec 'safetensors': fake-other 1.0 "
            "and hookbus-checkpoint-saver 0.1.0; uninstall one",
        ),
    ],
)
def test_the_codec_that_writes_is_chosen_by_its_name(
    other: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A codec that sorts first changes nothing; one of the same name is a conflict."""
    fake_dist(tmp_path, "fake-other", {"hookbus.codec": other})
    monkeypatch.syspath_prepend(tmp_path)
    if message:
        with pytest.raises(CheckpointError, match=message):
            load_codec()
    else:
        assert type(load_codec()).__name__ == "SafetensorsCodec"


@pytest.mark.parametrize("code", ["raise SystemExit", "1 / 0", "Codec = None"])
def test_a_codec_that_cannot_be_loaded_is_named(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its import raises."""
    entry = {"hookbus.codec": {"broken": "fake_codec:Codec"}}
    fake_dist(tmp_path, "fake-codec", entry, modules={"fake_codec": code})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fake_codec", raising=False)
    with pytest.raises(
        CheckpointError, match=r"codec 'broken' \(fake_codec:Codec\) cannot"
    ):
        load_codec("broken")
