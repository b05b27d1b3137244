"""Tests how plugins that are on become hooks of a session: import, order, names, kinds."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hookbus_stop_at_step import StopAtStepHook

import hookbus
from hookbus import (
    Config,
    Graph,
    MonitoredSession,
    PluginError,
    SessionRunHook,
    UsageError,
)
from hookbus.config.parser import Precedence as Place
from hookbus.config.parser import parse_switch as parse_word
from hookbus.config.settings import Setting
from hookbus.plugin.roster import ImpliedPlugin, ImpliedSetting
from hookbus.plugin.roster import session_hooks as members
from hookbus.testing import fake_dist
from tests.support.libraries import install_library

Install = Callable[..., None]
QUIET = Config(autoload=False)


@pytest.fixture
def install(tmp_path, monkeypatch) -> Install:
    """Return a function that installs a plugin: a module and its distribution."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, code: str, attribute: str = "", autouse: bool = False) -> None:
        module = f"fake_{name}_{tmp_path.name}".replace("-", "_")
        entry = {name: f"{module}{attribute and ':'}{attribute}"}
        groups = {"hookbus": entry} | ({"hookbus.autouse": entry} if autouse else {})
        fake_dist(tmp_path, f"fake-{name}", groups, modules={module: code})
        monkeypatch.delitem(sys.modules, module, raising=False)

    return write


def loaded_fakes(folder: Path) -> set[str]:
    """Return the modules of *folder* that were imported."""
    return {n for n in sys.modules if n.startswith("fake_") and n.endswith(folder.name)}


def config(*texts: str, autoload: bool = False, **settings: str) -> Config:
    """Return a Config after some ``-p`` words, with settings of a fake plugin."""
    said = [parse_word(text, f"-p {text}", Place.COMMAND) for text in texts]
    values = [
        Setting(texts[0], field, text, f"--{texts[0]}-{field} {text}", Place.COMMAND)
        for field, text in settings.items()
    ]
    return Config(tuple(said), tuple(values), autoload)


def names(
    config: Config, hooks: Any = (), chief: Any = (), kind: Any = "train"
) -> list[str]:
    given = {"hooks": hooks}, {"chief_only_hooks": chief}
    return [member.name for member in members(config, kind, *given)]


HOOK = """
import hookbus

class FakeHook(hookbus.SessionRunHook):
    options = hookbus.HookOptions(kinds={kinds})
    runs = []

    def __init__(self, size: int = 1) -> None:
        self.size = size

    def after_run(self, run_context):
        self.runs.append(run_context.kind)
"""
CLASS = HOOK.format(kinds=("train",))


def test_the_order_of_hooks(install):
    """First the chief's, autoloaded by name, switched on by name, then the caller's."""
    install("zz-module", "")
    install("aa-module", "")
    install("mm-auto", CLASS, "FakeHook", autouse=True)
    install("bb-class", CLASS, "FakeHook")
    install("yy-class", CLASS, "FakeHook")

    class FirstHook(SessionRunHook): ...

    class LastHook(SessionRunHook): ...

    class AaHook(SessionRunHook): ...

    found = names(
        config("yy-class", "bb-class", "no:progress", autoload=True),
        [LastHook(), AaHook()],
        [FirstHook()],
    )
    plugins = ["aa-module", "mm-auto", "zz-module", "bb-class", "yy-class"]
    assert found == ["first", *plugins, "last", "aa"]


def test_a_module_plugin_takes_part_with_its_functions(install):
    """Its decorated functions are called; undecorated ones are not."""
    install(
        "greeter",
        "import hookbus\ncalls = []\n"
        "@hookbus.hookimpl\ndef begin(graph): calls.append('begin')\n"
        "def end(session): calls.append('end')\n",
    )
    only = config("greeter")
    (member,) = members(only, "train", {})
    with MonitoredSession(Graph(), config=only):
        pass
    assert member.plugin.calls == ["begin"]


def test_each_session_has_hook_instances_of_its_own(install):
    """The counts of one session's hook are not in the next session's."""
    install("counter", CLASS, "FakeHook")
    one, two = (members(config("counter", size="5"), "train", {}) for _ in range(2))
    assert one[0].plugin is not two[0].plugin
    assert (one[0].plugin.size, one[0].distribution) == (5, "fake-counter 1.0")
    assert one[0].origin == "-p counter"


def test_a_blocked_plugin_is_never_imported(install, tmp_path):
    """``no:NAME`` comes before import; so does a plugin that nobody asked for."""
    install("bomb", "raise SystemExit('imported')")
    install("idle", "raise SystemExit('imported')", "Hook")
    members(config("no:bomb", "no:progress", autoload=True), "train", {})
    assert loaded_fakes(tmp_path) == set()


def test_all_plugins_that_do_not_load_are_told_at_once(install):
    """Three lines each: who, why, how to go on without it."""
    install("no-file", "import no_such_module_anywhere")
    install("no-attr", "", "MissingHook")
    install("good", CLASS, "FakeHook")
    with pytest.raises(hookbus.PluginError) as caught:
        members(config("no-file", "good", "no-attr"), "train", {})
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    for who, why, how in (lines[:3], lines[3:]):
        name = "no-file" if "no-file" in who else "no-attr"
        assert f"plugin '{name}' (fake-{name} 1.0" in who
        assert f"-p {name}" in who
        assert ("No module named" if name == "no-file" else "MissingHook") in why
        assert f"-p no:{name}" in how
        assert f"pip uninstall fake-{name}" in how


@pytest.mark.parametrize(
    "code", ["raise SystemExit(0)", "import sys; sys.exit()", "1 / 0", "("]
)
def test_whatever_an_import_raises_the_plugin_does_not_load(install, code):
    """A plugin that leaves Python at import does not end the program in its own way."""
    install("leaver", code)
    with pytest.raises(hookbus.PluginError, match="cannot load plugin 'leaver'"):
        members(config("leaver"), "train", {})


def test_a_plugin_whose_constructor_fails_does_not_load(install):
    """An error that is no wrong setting is told as a plugin that is broken."""
    install(
        "weak", "class Hook:\n    def __init__(self): raise OSError('no licence')\n", "Hook"
    )
    with pytest.raises(hookbus.PluginError, match=r"'weak'.*\n.*no licence.*\n.*no:weak"):
        members(config("weak"), "train", {})


def test_a_setting_of_a_plugin_that_has_none(install):
    """A module takes no settings; the message names the flag."""
    install("greeter", "")
    with pytest.raises(hookbus.UsageError, match=r"--greeter-size 5.*no settings"):
        members(config("greeter", size="5"), "train", {})


def test_hooks_in_code_bear_the_name_of_their_entry_point():
    """Else their class's name in kebab case without Hook; further ones are numbered."""

    class LossPrinterHook(SessionRunHook): ...

    class HTTPHook(SessionRunHook): ...

    class Hook(SessionRunHook): ...

    stop = [StopAtStepHook(last_step=5) for _ in range(3)]
    printers = [LossPrinterHook(), LossPrinterHook()]
    found = names(QUIET, [*stop, *printers, HTTPHook(), Hook()])
    assert found == [
        *("stop-at-step", "stop-at-step-2", "stop-at-step-3"),
        *("loss-printer", "loss-printer-2", "http", "hook"),
    ]


def test_a_flag_adds_an_instance_beside_one_in_code():
    """Objects in ``hooks=`` are never reconfigured."""
    mine = StopAtStepHook(last_step=5)
    said = config("stop-at-step", last_step="3")
    found = members(said, "train", {"hooks": [mine]})
    assert [(m.name, m.plugin.last_step) for m in found] == [
        ("stop-at-step", 3),
        ("stop-at-step-2", 5),
    ]
    assert found[1].plugin is mine


@pytest.mark.parametrize("word", ["no:stop-at-step", "no:Stop_At_Step"])
def test_a_hook_in_code_is_blocked_by_its_name(word):
    """``no:NAME`` keeps all instances out, those passed in code too."""

    class OtherHook(SessionRunHook): ...

    hooks = [StopAtStepHook(last_step=5), OtherHook(), StopAtStepHook(last_step=9)]
    assert names(config(word), hooks, [StopAtStepHook(last_step=1)]) == ["other"]


def test_a_hook_in_code_without_entry_point_is_blocked_too(capsys):
    """Its name is its class's; as no such plugin is installed there is a warning."""

    class LossPrinterHook(SessionRunHook): ...

    assert names(QUIET.with_plugins("no:loss-printer"), [LossPrinterHook()]) == []
    assert "loss-printer" in capsys.readouterr().err


def test_autoload_switched_off_leaves_hooks_in_code():
    """It touches module and autouse plugins only."""
    assert names(QUIET, [StopAtStepHook(last_step=5)]) == ["stop-at-step"]


@pytest.mark.parametrize(
    ("kinds", "kind", "there"),
    [
        (("train",), "train", True),
        (("train",), "eval", False),
        (("eval",), "train", False),
        (("train", "eval"), "eval", True),
    ],
)
def test_a_plugin_takes_part_in_sessions_of_its_kinds(install, kinds, kind, there):
    """A switched-on hook serves the kinds it declares; one in code its session's."""
    install("picky", HOOK.format(kinds=kinds), "FakeHook")

    class MineHook(SessionRunHook):
        options = hookbus.HookOptions(kinds=("predict",))

    assert names(config("picky"), [MineHook()], kind=kind) == ["picky"] * there + ["mine"]


@pytest.mark.parametrize(("kinds", "runs"), [(("train",), 1), (("train", "aux"), 2)])
def test_aux_runs_reach_only_plugins_that_declare_them(install, kinds, runs):
    """A look at the side is no training step, unless a hook says it wants it."""
    install("picky", HOOK.format(kinds=kinds), "FakeHook")
    only = config("picky")
    (member,) = members(only, "train", {})
    with MonitoredSession(Graph(), config=only) as session:
        session.run("global_step")
        session.run("global_step", kind="aux")
    assert len(type(member.plugin).runs) == runs


@pytest.mark.parametrize(
    ("declared", "seen"),
    [
        (None, ["train"]),
        (("aux",), ["train", "aux"]),
        (("eval", "predict"), ["train", "eval", "predict"]),
        (["eval", "train"], ["train", "eval"]),
    ],
)
def test_a_hook_in_code_sees_its_sessions_kind_and_those_it_declares(declared, seen):
    """An object in ``hooks=`` that declares aux sees aux runs, like a plugin."""
    kinds = []

    class MineHook(SessionRunHook):
        def after_run(self, run_context):
            kinds.append(run_context.kind)

    if declared is not None:
        MineHook.options = hookbus.HookOptions(kinds=declared)
    with MonitoredSession(Graph(), hooks=[MineHook()], config=config()) as session:
        for kind in ("train", "aux", "eval", "predict"):
            session.run("global_step", kind=kind)
    assert kinds == seen


def test_what_a_hook_inherits_is_no_declaration():
    """The default of SessionRunHook adds no training runs to an evaluation."""
    (mine,) = members(config(), "eval", {"hooks": [SessionRunHook()]})
    assert mine.kinds == ("eval",)


def test_a_wrong_option_of_a_plugin_keeps_it_from_loading(install):
    """The message names the plugin, the option, and the line that it is in."""
    install("picky", HOOK.format(kinds=("training",)), "FakeHook")
    with pytest.raises(PluginError) as caught:
        members(config("picky"), "train", {})
    first, second, third = str(caught.value).splitlines()
    assert first.startswith("cannot load plugin 'picky' (fake-picky 1.0, ")
    assert second.startswith(
        "  PluginError: HookOptions(kinds=('training',)): expected a tuple of 'train', "
        "'eval', 'predict', 'aux', like ('train',) ("
    )
    line = 1 + HOOK.splitlines().index("    options = hookbus.HookOptions(kinds={kinds})")
    assert second.endswith(f".py:{line})")
    assert third.startswith("  Run without it: -p no:picky")


def test_a_dict_in_place_of_options_is_an_error():
    """The message names the class of the hook, and what to write."""

    class MineHook(SessionRunHook):
        options: ClassVar = {"kinds": ("eval",), "before": "progress"}

    with pytest.raises(PluginError) as caught:
        members(config(), "train", {"hooks": [MineHook()]})
    assert str(caught.value) == (
        "MineHook.options is a dict: write options = hookbus.HookOptions(kinds=('eval',), "
        "before='progress'), or give the attribute another name if it means something else"
    )


def test_of_two_policies_from_one_place_the_last_counts(install):
    """As of any setting that is given twice."""
    install("counter", CLASS, "FakeHook")
    said = [
        Setting("counter", "on_error", text, f"--counter-on-error {text}", Place.COMMAND)
        for text in ("warn", "quarantine:2")
    ]
    weaker = Setting("counter", "on_error", "raise", "tox.ini:2", Place.FILE)
    for settings in ([*said, weaker], [weaker, *said]):
        only = attrs.evolve(config("counter"), settings=tuple(settings))
        (member,) = members(only, "train", {})
        assert str(member.policy) == "quarantine:2"


def test_importing_a_plugin_takes_no_number_from_a_seeded_program(install):
    """The numbers that it draws for itself at its import are put back."""
    install("drawing", f"import random\nDRAWN = random.random()\n{CLASS}", "FakeHook")
    random.seed(7)
    wanted = random.random()
    random.seed(7)
    (member,) = members(config("drawing"), "train", {})
    drawn = sys.modules[type(member.plugin).__module__].DRAWN
    assert (drawn, random.random()) == (wanted, wanted)


def test_what_an_argument_switches_on_takes_part_in_any_session(install):
    """Its kinds are for who comes by a flag; the session itself asked for it."""
    install("picky", CLASS, "FakeHook")
    automatic = [ImpliedPlugin("picky", "save_secs=600", {"size": ImpliedSetting(3)})]
    (member,) = members(QUIET, "eval", {}, automatic=automatic)
    assert (member.name, member.plugin.size) == ("picky", 3)
    assert names(config("picky"), kind="eval") == []


def test_a_hook_of_another_library_takes_part(tmp_path, monkeypatch) -> None:
    """The library's plugin gives the hook for it, which has the name of its class."""
    library = install_library(tmp_path, monkeypatch)
    callback, graph = library.Callback(), Graph()
    graph.train_op(lambda: None, name="train")
    with MonitoredSession(graph, hooks=[callback], config=QUIET) as session:
        session.run("train")
        session.run("train")
    assert callback.steps == [1, 2]
    assert names(QUIET, [callback]) == ["callback"]


def test_a_hook_of_a_library_without_its_plugin_is_refused() -> None:
    """The message names what to install; a hook of hookbus may be of any library."""
    methods = {"__module__": "jax.training", "after_run": lambda self: None}
    with pytest.raises(UsageError, match=r"hooks holds a LogHook, .* install hookbus-jax,"):
        names(QUIET, [type("LogHook", (), methods)()])
    own = type("OwnHook", (SessionRunHook,), methods)()
    assert names(QUIET, [own]) == ["own"]
