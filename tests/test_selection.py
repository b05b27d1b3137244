"""Which plugins are on and why, decided from metadata and words alone."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import PluginError, UsageError
from hookbus.selection import Installed, Word, decide, installed_plugins, parse_word


def plugin(name: str, value: str, autouse: bool = False) -> Installed:
    """Return a plugin that is installed; its module does not exist."""
    entry = EntryPoint(name, value, "hookbus")
    return Installed(name, entry, f"hookbus-{name}", "1.0", autouse)


INSTALLED = {
    "clock": plugin("clock", "no_clock:ClockHook"),
    "greeter": plugin("greeter", "no_greeter"),
    "meter": plugin("meter", "no_meter:MeterHook", autouse=True),
}


def words(*texts: str, strict: bool = False) -> list[Word]:
    return [parse_word(text, f"-p {text}", strict) for text in texts]


def on(*texts: str, autoload: bool = True) -> list[str]:
    """Return the names that are on after some words."""
    verdicts = decide(INSTALLED, words(*texts), autoload)
    return [name for name, verdict in verdicts.items() if verdict.on]


def test_modules_and_autouse_classes_are_on_when_found():
    """A hook class is on only if asked for; each verdict keeps its reason."""
    verdicts = decide(INSTALLED, [])
    assert {name: (v.on, v.why) for name, v in verdicts.items()} == {
        "clock": (False, "not switched on"),
        "greeter": (True, "found"),
        "meter": (True, "autouse"),
    }
    assert not any(verdict.blocked for verdict in verdicts.values())


def test_autoload_switched_off_leaves_what_is_named():
    """Without autoload, only words switch plugins on."""
    assert on(autoload=False) == []
    assert on("greeter", "clock", autoload=False) == ["clock", "greeter"]
    verdicts = decide(INSTALLED, [], False, "because of the test")
    assert verdicts["meter"].why == "because of the test"
    assert verdicts["clock"].why == "not switched on"


@given(st.lists(st.tuples(st.sampled_from(sorted(INSTALLED)), st.booleans())))
def test_the_last_word_about_a_plugin_decides(said):
    """Earlier words about the same plugin, and words about others, do not matter."""
    texts = [name if state else f"no:{name}" for name, state in said]
    last = {
        name: (state, f"-p {text}") for (name, state), text in zip(said, texts, strict=True)
    }
    verdicts = decide(INSTALLED, words(*texts))
    for name, (state, why) in last.items():
        assert (verdicts[name].on, verdicts[name].why) == (state, why)
        assert verdicts[name].blocked is not state


@pytest.mark.parametrize(
    "spelling",
    ["nan-tensor", "nan_tensor", "Nan.Tensor", "hookbus-nan-tensor", " nan-tensor "],
)
def test_any_spelling_of_a_name_is_accepted(spelling):
    """Names are compared in one spelling, with or without the project's prefix."""
    installed = {"nan-tensor": plugin("nan-tensor", "no_nan:Hook")}
    assert decide(installed, words(spelling))["nan-tensor"].on
    assert decide(installed, words(f"no:{spelling}"))["nan-tensor"].blocked


@pytest.mark.parametrize("strict", [True, False])
def test_a_plugin_to_switch_on_must_be_installed(strict):
    """The message has the words, the name, and what was probably meant."""
    with pytest.raises(
        UsageError, match=r"-p greter: no plugin called 'greter'.*'greeter'"
    ):
        decide(INSTALLED, words("greter", strict=strict))
    with pytest.raises(UsageError, match="installed: clock, greeter, meter"):
        decide(INSTALLED, words("zzz", strict=strict))


def test_a_plugin_to_switch_off_that_is_not_installed(capsys):
    """On the command line it is an error, elsewhere a warning; both suggest."""
    with pytest.raises(UsageError, match=r"-p no:greter: no plugin.*'greeter'"):
        decide(INSTALLED, words("no:greter", strict=True))
    verdicts = decide(INSTALLED, words("no:greter"))
    assert verdicts["greter"].blocked
    shown = capsys.readouterr().err
    assert "warning" in shown
    assert "did you mean 'greeter'" in shown


def test_a_missing_plugin_that_is_switched_off_again_is_no_error():
    """What counts is the last word."""
    assert not decide(INSTALLED, words("metre", "no:metre"))["metre"].on


def test_deciding_imports_nothing():
    """The modules of INSTALLED do not exist, and nobody notices."""
    on("clock", "greeter", "meter")
    assert not {"no_clock", "no_greeter", "no_meter"} & sys.modules.keys()


@pytest.mark.parametrize("text", ["", "  ", "no:", "no:  "])
def test_a_word_needs_a_name(text):
    """The message says where the empty word was said."""
    with pytest.raises(UsageError, match="somewhere: the plugin name is empty"):
        parse_word(text, "somewhere")


def distribution(folder: Path, name: str, entry_points: str) -> None:
    """Write the metadata of a distribution."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    info.joinpath("entry_points.txt").write_text(entry_points)


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """Return a folder that is searched for distributions, alone."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_installed_plugins_are_read_from_metadata(site):
    """Names are put into kebab case and sorted; nothing is imported."""
    distribution(site, "one", "[hookbus]\nHookbus_Zebra = no_zebra\n")
    distribution(
        site,
        "two",
        "[hookbus]\nant = no_ant:AntHook\n[hookbus.autouse]\nant = no_ant:AntHook\n",
    )
    found = installed_plugins()
    assert list(found) == ["ant", "zebra"]
    ant, zebra = found.values()
    assert (ant.is_class, ant.autouse, ant.autoloads) == (True, True, True)
    assert (zebra.is_class, zebra.autouse, zebra.autoloads) == (False, False, True)
    assert zebra.shipped_by == "one 1.0"


def test_two_distributions_with_a_plugin_of_one_name_are_an_error(site):
    """Both are named, for one of them must go."""
    distribution(site, "one", "[hookbus]\nzebra = no_one\n")
    distribution(site, "two", "[hookbus]\nZebra = no_two\n")
    with pytest.raises(
        PluginError, match="two distributions provide plugin 'zebra'"
    ) as caught:
        installed_plugins()
    assert "one 1.0" in str(caught.value)
    assert "two 1.0" in str(caught.value)


def test_a_distribution_that_is_found_twice_counts_once(site, tmp_path_factory):
    """The same distribution on two places of the path is no conflict."""
    other = tmp_path_factory.mktemp("other")
    for folder in (site, other):
        distribution(folder, "one", "[hookbus]\nzebra = no_one\n")
    sys.path.append(str(other))
    assert list(installed_plugins()) == ["zebra"]


def test_without_plugins_there_is_nothing_to_decide(site):
    """The core needs no plugin."""
    assert installed_plugins() == {}
    assert decide({}, []) == {}
