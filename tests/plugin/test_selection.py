"""Tests which plugins are on and why, decided from metadata and words alone."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookbus import Config, PluginError, UsageError
from hookbus.config.parser import Precedence as Place
from hookbus.config.parser import Switch as Word
from hookbus.config.parser import parse_switch as parse_word
from hookbus.discovery import Catalog, Installed, installed_plugins
from hookbus.plugin import selection as selection
from hookbus.plugin.loading import check_loadable
from hookbus.testing import fake_dist


def plugin(name: str, value: str, autouse: bool = False) -> Installed:
    """Return a plugin that is installed; its module does not exist."""
    entry = EntryPoint(name, value, "hookbus")
    return Installed(name, entry, f"hookbus-{name}", "1.0", autouse)


INSTALLED = Catalog(
    {
        "clock": plugin("clock", "no_clock:ClockHook"),
        "greeter": plugin("greeter", "no_greeter"),
        "meter": plugin("meter", "no_meter:MeterHook", autouse=True),
    }
)


def words(*texts: str, place: Place = Place.ENVIRONMENT) -> list[Word]:
    return [parse_word(text, f"-p {text}", place) for text in texts]


def decide(catalog: Catalog, said: list[Word], **keys: Any) -> selection.Selection:
    """Decide with the default configuration, except for some keys."""
    return selection.decide(catalog, said, Config(**keys))


def on(*texts: str, autoload: bool = True) -> list[str]:
    """Return the names that are on after some words."""
    return [
        verdict.name for verdict in decide(INSTALLED, words(*texts), autoload=autoload).on
    ]


def test_modules_and_autouse_classes_are_on_when_found():
    """A hook class is on only if asked for; each verdict keeps its reason."""
    verdicts = decide(INSTALLED, []).verdicts
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
    why = "because of the test"
    verdicts = decide(INSTALLED, [], autoload=False, autoload_source=why).verdicts
    assert verdicts["meter"].why == "because of the test"
    assert verdicts["clock"].why == "not switched on"


@given(st.lists(st.tuples(st.sampled_from(sorted(INSTALLED.plugins)), st.booleans())))
def test_the_last_word_about_a_plugin_decides(said):
    """Earlier words about the same plugin, and words about others, do not matter."""
    texts = [name if state else f"no:{name}" for name, state in said]
    last = {
        name: (state, f"-p {text}") for (name, state), text in zip(said, texts, strict=True)
    }
    verdicts = decide(INSTALLED, words(*texts)).verdicts
    for name, (state, why) in last.items():
        assert (verdicts[name].on, verdicts[name].why) == (state, why)
        assert verdicts[name].blocked is not state


@pytest.mark.parametrize(
    "spelling",
    ["nan-tensor", "nan_tensor", "Nan.Tensor", "hookbus-nan-tensor", " nan-tensor "],
)
def test_any_spelling_of_a_name_is_accepted(spelling):
    """Names are compared in one spelling, with or without the project's prefix."""
    installed = Catalog({"nan-tensor": plugin("nan-tensor", "no_nan:Hook")})
    assert decide(installed, words(spelling)).verdicts["nan-tensor"].on
    assert decide(installed, words(f"no:{spelling}")).verdicts["nan-tensor"].blocked


@pytest.mark.parametrize("place", [Place.FILE, Place.ENVIRONMENT, Place.COMMAND])
def test_a_plugin_to_switch_on_must_be_installed(place):
    """The message has the words, the name, and what was probably meant."""
    with pytest.raises(UsageError, match=r"-p greter: no plugin .*'greter'.*'greeter'"):
        decide(INSTALLED, words("greter", place=place))
    with pytest.raises(UsageError, match="installed plugins: clock, greeter, meter"):
        decide(INSTALLED, words("zzz", place=place))


def test_a_plugin_to_switch_off_that_is_not_installed():
    """On the command line, or strictly, it is an error, elsewhere a warning."""
    slip = r"-p no:greter: no plugin.*'-p no:greeter'"
    with pytest.raises(UsageError, match=slip):
        decide(INSTALLED, words("no:greter", place=Place.COMMAND))
    with pytest.raises(UsageError, match=slip):
        decide(INSTALLED, words("no:greter"), strict=True)
    selection = decide(INSTALLED, words("no:greter"))
    assert selection.verdicts["greter"].blocked
    (warning,) = selection.warnings
    assert "did you mean" in warning


@pytest.mark.parametrize("place", [Place.ENVIRONMENT, Place.COMMAND])
def test_a_missing_plugin_that_is_switched_off_again_is_no_error(place):
    """Whoever switches off what a weaker place wants has made no slip."""
    said = [*words("metre"), *words("no:metre", place=place)]
    selection = decide(INSTALLED, said)
    assert not selection.verdicts["metre"].on
    assert selection.warnings == ()


@given(st.permutations(list(Place)))
def test_the_strongest_place_decides(places):
    """In which order the places are read does not matter."""
    said = [
        parse_word("no:clock" if place is Place.CODE else "clock", place.name, place)
        for place in places
        if place <= Place.CODE
    ]
    verdict = decide(INSTALLED, said).verdicts["clock"]
    assert (verdict.on, verdict.why) == (False, "CODE")
    assert [word.place for word in verdict.words] == sorted(w.place for w in said)


def test_a_word_beats_what_a_setting_implies_in_the_same_place():
    """``no:NAME`` holds against settings of equal or weaker places, not of stronger."""
    implied = Word("clock", True, "--clock 3", Place.ENVIRONMENT, implied=True)
    here = decide(INSTALLED, [*words("no:clock"), implied]).verdicts["clock"]
    weaker = words("no:clock", place=Place.FILE)
    there = decide(INSTALLED, [implied, *weaker]).verdicts["clock"]
    assert (here.on, there.on) == (False, True)


@pytest.mark.parametrize("text", ["session", "no:session", "no:checkpoint", "no:hookbus"])
def test_parts_of_hookbus_are_no_plugins(text):
    """They are always on, whatever a word says."""
    with pytest.raises(UsageError, match="is part of hookbus"):
        decide(INSTALLED, words(text))


@pytest.mark.parametrize(
    "alias", ["no_clock", "no-clock", "no_clock:ClockHook", "hookbus-clock", "Clock"]
)
def test_a_plugin_goes_by_its_module_class_and_distribution_too(alias):
    """Whatever name is at hand works, and means the same plugin."""
    assert on(alias) == ["clock", "greeter", "meter"]


def test_an_alias_of_several_plugins_is_ambiguous():
    """A distribution with two plugins does not stand for one of them."""
    both = {
        name: attrs.evolve(plugin(name, f"no_{name}:Hook"), distribution="hookbus-times")
        for name in ("clock", "watch")
    }
    with pytest.raises(UsageError, match=r"-p times: 'times' can mean clock or watch"):
        decide(Catalog(both), words("times"))


def test_deciding_imports_nothing():
    """The modules of INSTALLED do not exist, and nobody notices."""
    on("clock", "greeter", "meter")
    assert not {"no_clock", "no_greeter", "no_meter"} & sys.modules.keys()


@pytest.mark.parametrize("text", ["", "  ", "no:", "no:  "])
def test_a_word_needs_a_name(text):
    """The message says where the empty word was said."""
    with pytest.raises(UsageError, match="somewhere: the plugin name is empty"):
        parse_word(text, "somewhere", Place.FILE)


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """Return a folder that is searched for distributions, alone."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_installed_plugins_are_read_from_metadata(site):
    """Names are put into kebab case and sorted; nothing is imported."""
    fake_dist(site, "one", {"hookbus": {"Hookbus_Zebra": "no_zebra"}})
    ant = {"ant": "no_ant:AntHook"}
    fake_dist(site, "two", {"hookbus": ant, "hookbus.autouse": ant})
    found = installed_plugins()
    assert list(found) == ["ant", "zebra"]
    ant, zebra = found.plugins.values()
    assert (ant.is_class, ant.autouse, ant.autoloads) == (True, True, True)
    assert (zebra.is_class, zebra.autouse, zebra.autoloads) == (False, False, True)
    assert zebra.shipped_by == "one 1.0"


def test_two_distributions_with_a_plugin_of_one_name_are_an_error(site):
    """Both are named, for one of them must go."""
    fake_dist(site, "one", {"hookbus": {"zebra": "no_one"}})
    fake_dist(site, "two", {"hookbus": {"Zebra": "no_two"}})
    (zebra,) = installed_plugins().plugins.values()
    assert zebra.rivals == ("one 1.0", "two 1.0")
    with pytest.raises(
        PluginError, match=r"provide plugin 'zebra': one 1\.0 and two 1\.0.*no:zebra"
    ):
        check_loadable(zebra)


def test_a_distribution_that_is_found_twice_counts_once(site, tmp_path_factory):
    """One distribution in two places of the path is no conflict."""
    other = tmp_path_factory.mktemp("other")
    for folder in (site, other):
        fake_dist(folder, "one", {"hookbus": {"zebra": "no_one"}})
    sys.path.append(str(other))
    assert list(installed_plugins()) == ["zebra"]


def test_without_plugins_there_is_nothing_to_decide(site):
    """The core needs no plugin."""
    assert list(installed_plugins()) == []
    assert decide(Catalog({}), []).verdicts == {}
