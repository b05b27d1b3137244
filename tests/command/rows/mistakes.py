"""Lists rows about mistakes in ordering, naming and blocking, and their messages."""

from __future__ import annotations

import textwrap
from typing import Any

from tests.command.row import Row

HEAD = """\
import attrs
import hookbus
from hookbus import HookOptions, SessionRunHook, hookimpl

"""
MODULE = "-p my_hooks"
ONE = "-p my_hooks:OneHook"
BOTH = f"{ONE} -p my_hooks:TwoHook"
WARNING = 0
"""The exit code of a run that goes on after it has told of a mistake."""
CIRCLE = "PLUGIN ERROR: plugins ask for an impossible order: …'one'…'two'…; remove one"


def wrong(id: str, flags: str, source: str, code: int, *tells: str, **more: Any) -> Row:
    """Return the row of a mistake; *source* is a module beside the script."""
    files = {"my_hooks.py": HEAD + source, **more.pop("files", {})}
    return Row(id, flags, installed="", files=files, code=code, tells=tells, **more)


def hook(name: str, *lines: str) -> str:
    """Return a hook class with these lines, and one method without a mistake."""
    body = textwrap.indent("\n".join([*lines, "def after_run(self): ..."]), "    ")
    return f"class {name}Hook(SessionRunHook):\n{body}\n\n"


def declares(options: str) -> str:
    """Return the line of a hook class that declares options."""
    return f"options = HookOptions({options})"


def marked(*lines: str, mark: str = "@hookimpl") -> str:
    """Return functions with a mark on the first."""
    return "\n".join([mark, *lines, ""])


ORDERING = [
    wrong(
        "two that both want to come first",
        BOTH,
        hook("One", declares("before='two'")) + hook("Two", declares("before='one'")),
        3,
        CIRCLE,
    ),
    wrong(
        "three that each want to come after the next",
        f"{BOTH} -p my_hooks:ThreeHook",
        hook("One", declares("after='two'"))
        + hook("Two", declares("after='three'"))
        + hook("Three", declares("after='one'")),
        3,
        "PLUGIN ERROR: plugins ask for an impossible order: …'three'",
        CIRCLE.replace("'one'…'two'", "'two'…'one'"),
    ),
    wrong(
        "before and after the same one",
        BOTH,
        hook("One", declares("before='two', after='two'")) + hook("Two"),
        3,
        CIRCLE,
    ),
    wrong(
        "a circle of a plugin and a hook in code",
        ONE,
        hook("One", declares("before='two'")) + hook("Two", declares("before='one'")),
        3,
        CIRCLE,
        session="hooks=[TwoHook()]",
    ),
    wrong(
        "a circle in an event that comes last",
        BOTH,
        hook("One", declares("before='two'"), "def end(self): ...")
        + "class TwoHook(SessionRunHook):\n    options = HookOptions(before='one')\n"
        + "    def end(self): ...\n",
        3,
        CIRCLE,
    ),
    wrong(
        "a wish for a place beside oneself",
        ONE,
        hook("One", declares("before='one'")),
        3,
        "PLUGIN ERROR: plugin 'one' …before names 'one', which is the plugin itself",
    ),
    wrong(
        "a wish for a place beside oneself, in another spelling",
        ONE,
        hook("One", declares("after=('hookbus_One',)")),
        3,
        "PLUGIN ERROR: plugin 'one' …after names 'one', which is the plugin itself",
    ),
    wrong(
        "a number for a place",
        ONE,
        hook("One", declares("before=3")),
        3,
        "PLUGIN ERROR: HookOptions(before=3): expected the name of a plugin",
    ),
    wrong(
        "a class for a name",
        BOTH,
        hook("Two") + hook("One", declares("after=(TwoHook,)")),
        3,
        "PLUGIN ERROR: HookOptions(after=(…): expected the name of a plugin",
    ),
    wrong(
        "a set of names, where a tuple is told",
        BOTH,
        hook("One", declares("before={'two'}")) + hook("Two"),
        3,
        "PLUGIN ERROR: HookOptions(before={'two'}): expected the name of a "
        "plugin, or a tuple of names",
    ),
    wrong(
        "a name that is nearly one",
        f"-p my_hooks:PrinterHook {ONE}",
        hook("Printer") + hook("One", declares("before='primter'")),
        WARNING,
        "one: before names 'primter'; did you mean 'printer'?",
    ),
    wrong(
        "a wish that tryfirst overrules",
        BOTH,
        hook("One", declares("before='two'")) + hook("Two", "@hookimpl(tryfirst=True)"),
        WARNING,
        "one: before='two' cannot hold …'two' is tryfirst… events=after_run",
    ),
    wrong(
        "a wish to come before a wrapper",
        BOTH,
        hook("One", declares("before='two'"))
        + hook("Two", "@hookimpl(wrapper=True)").replace("...", "return (yield)"),
        WARNING,
        "one: before='two' cannot hold …'two' is wrapper… events=after_run",
    ),
    wrong(
        "first and last at once",
        MODULE,
        marked("def after_run(): ...", mark="@hookimpl(tryfirst=True, trylast=True)"),
        3,
        "plugin 'my-hooks' …after_run() has both tryfirst and trylast; remove one",
    ),
]

EVENTS = [
    wrong(
        "an event that is misspelt",
        MODULE,
        marked("def before_rum(): ..."),
        3,
        "'my-hooks' …'before_rum' is not an event; did you mean 'before_run'…my_hooks.py:",
    ),
    wrong(
        "an event of a class that is misspelt",
        ONE,
        hook("One", "@hookimpl", "def afer_save(self): ..."),
        3,
        "plugin 'one' …'afer_save' is not an event; did you mean 'after_save'…my_hooks.py:",
    ),
    wrong(
        "an event that is misspelt in specname",
        MODULE,
        marked("def watch(): ...", mark="@hookimpl(specname='after_rn')"),
        3,
        "PLUGIN ERROR: plugin 'my-hooks' …'after_rn' is not an event; …mean 'after_run'",
    ),
    wrong(
        "an argument that is misspelt",
        ONE,
        hook("One", "def before_run(self, run_contxt): ..."),
        3,
        "plugin 'one' …before_run() takes 'run_contxt', …did you mean 'run_context'?",
    ),
    wrong(
        "an argument of another event",
        MODULE,
        marked("def begin(session): ..."),
        3,
        "begin() takes 'session', which 'begin' does not have; it has graph, checkpoints",
    ),
    wrong(
        "self that was forgotten",
        ONE,
        hook("One", "def begin(graph): ..."),
        3,
        "PLUGIN ERROR: plugin 'one' …begin()…self",
    ),
    wrong(
        "an argument by keyword only",
        MODULE,
        marked("def begin(*, graph): ..."),
        3,
        "PLUGIN ERROR: plugin 'my-hooks' …begin() takes 'graph' by keyword only",
    ),
    wrong(
        "an event that is async",
        ONE,
        hook("One", "async def begin(self): ..."),
        3,
        "plugin 'one' …begin() is async, but events are plain calls: write def",
    ),
    wrong(
        "a wrapper that does not yield",
        MODULE,
        marked("def after_run(): ...", mark="@hookimpl(wrapper=True)"),
        3,
        "plugin 'my-hooks' …after_run() has wrapper=True but no yield",
    ),
    wrong(
        "a function that yields and is no wrapper",
        MODULE,
        marked("def after_run():", "    yield"),
        3,
        "PLUGIN ERROR: plugin 'my-hooks' …after_run() yields, …@hookimpl(wrapper=True)",
    ),
    wrong(
        "a wrapper of the old style",
        MODULE,
        marked("def after_run():", "    yield", mark="@hookimpl(hookwrapper=True)"),
        3,
        "plugin 'my-hooks' …old-style hookwrapper; use @hookimpl(wrapper=True)",
    ),
    wrong(
        "two functions for one event",
        MODULE,
        marked("def end(): ...")
        + marked("def so(): ...", mark="@hookimpl(specname='end')"),
        3,
        "PLUGIN ERROR: plugin 'my-hooks' …end() and so() both implement 'end'",
    ),
    wrong(
        "an event of the plugin's own that exists already",
        MODULE,
        marked(
            "def addhooks(bus):",
            "    class Events:",
            "        @hookbus.hookspec",
            "        def begin(self): ...",
            "    bus.add_events(Events)",
        ),
        3,
        "PLUGIN ERROR: the event 'begin' is declared twice, …Events; rename one",
    ),
    wrong(
        "events of the plugin's own without any mark",
        MODULE,
        marked("def addhooks(bus):", "    class Events: ...", "    bus.add_events(Events)"),
        3,
        "PLUGIN ERROR: …declares no event: mark its functions @hookspec",
    ),
]

MARKS = [
    wrong(
        "a mark that was forgotten in a module",
        MODULE,
        marked("def end(): ...", "def begin(graph): ..."),
        WARNING,
        "begin() looks like a hook but has no @hookimpl plugin=my-hooks",
    ),
    wrong(
        "a mark that was forgotten in a class",
        ONE,
        hook("One", "def after_save(self, session, path): ..."),
        WARNING,
        "after_save() looks like a hook but has no @hookimpl plugin=one",
    ),
    wrong(
        "a mark that was forgotten where a base class has it",
        ONE,
        hook("Two", "@hookimpl", "def before_save(self): ...")
        + "class OneHook(TwoHook):\n    def before_save(self): ...\n",
        WARNING,
        "before_save() looks like a hook but has no @hookimpl plugin=one",
    ),
    wrong(
        "a module without any mark",
        MODULE,
        "def begin(graph): ...\n",
        4,
        "ERROR: -p my_hooks: the module 'my_hooks' …has no function marked @hook",
    ),
]

OBJECTS = [
    wrong(
        "a class in the place of its object",
        "",
        hook("One"),
        4,
        "ERROR: hooks takes hook objects, and OneHook is a class: write OneHook(...)",
        session="hooks=[OneHook]",
    ),
    wrong(
        "one hook in the place of a list",
        "",
        hook("One"),
        4,
        "ERROR: hooks takes a list of hooks, not a OneHook: write hooks=[...]",
        session="hooks=OneHook()",
    ),
    wrong(
        "a function that makes a hook and forgets to return it",
        "",
        "def make(): SessionRunHook()\n",
        4,
        "ERROR: hooks[0] is None: does the code that makes it return it?",
        session="hooks=[make()]",
    ),
    wrong(
        "one object twice",
        "",
        hook("One") + "one = OneHook()\n",
        4,
        "ERROR: hook 'one…' …is given twice",
        session="hooks=[one, one]",
    ),
    wrong(
        "an object without any event",
        "",
        "class One:\n    def befor_run(self): ...\n",
        4,
        "ERROR: hooks= contains …One object…, which is not a hook",
        session="hooks=[One()]",
    ),
    wrong(
        "a plugin that compares by value",
        ONE,
        "@attrs.define\n" + hook("One", "size: int = 3"),
        3,
        "plugin 'one' …OneHook compares by value…@attrs.define(eq=False)",
    ),
    wrong(
        "a hook with an __eq__ of its own",
        "",
        hook("One", "def __eq__(self, other): return True"),
        3,
        "PLUGIN ERROR: plugin 'one' …OneHook compares by value",
        session="hooks=[OneHook()]",
    ),
]

SETTINGS = [
    wrong(
        "an unknown policy for errors",
        ONE,
        hook("One", declares("on_error='ignore'")),
        3,
        "PLUGIN ERROR: HookOptions(on_error=...): 'ignore' is not an error policy: …raise",
    ),
    wrong(
        "a kind of session that is misspelt",
        ONE,
        hook("One", declares("kinds=('trian',)")),
        3,
        "PLUGIN ERROR: HookOptions(kinds=('trian',)): expected…'train'",
    ),
    wrong(
        "one kind of session in the place of several",
        ONE,
        hook("One", declares("kinds='train'")),
        3,
        "PLUGIN ERROR: HookOptions(kinds='train'): expected a tuple",
    ),
    wrong(
        "one group of settings in the place of several",
        f"{ONE} --one-secs 5",
        hook(
            "One",
            declares("exclusive_settings=('secs', 'steps')"),
            "def __init__(self, secs: int = 1, steps: int | None = None): ...",
        ),
        3,
        "PLUGIN ERROR: HookOptions(exclusive_settings=('secs', 'steps'))",
    ),
    wrong(
        "a dict in the place of HookOptions",
        ONE,
        hook("One", "options = {'kinds': ('eval',)}"),
        3,
        "OneHook.options is a dict: write options = hookbus.HookOptions(kinds=('eval',))",
    ),
    wrong(
        "a setting that every plugin has",
        MODULE,
        marked("def addoption(group):", "    group.add('on_error')"),
        3,
        "plugin 'my-hooks': setting 'on_error' is a setting of every plugin",
    ),
    wrong(
        "a setting with a dash",
        MODULE,
        marked("def addoption(group):", "    group.add('every-step', int, default=1)"),
        3,
        "PLUGIN ERROR: plugin 'my-hooks': setting 'every-step' is not an identifier",
    ),
    wrong(
        "a setting twice",
        MODULE,
        marked("def addoption(group):", *["    group.add('a', default=1)"] * 2),
        3,
        "PLUGIN ERROR: plugin 'my-hooks': setting 'a' is declared twice",
    ),
]

BLOCKING = [
    wrong(
        "to switch off a name that is misspelt",
        "-p my_hooks:PrinterHook -p no:primter",
        hook("Printer"),
        4,
        "ERROR: -p no:primter: no plugin called 'primter' is installed; …'-p no:printer'?",
    ),
    wrong(
        "to switch off by the name of a file what is called otherwise",
        f"{ONE} -p no:my_hook",
        hook("One"),
        4,
        "ERROR: -p no:my_hook: no plugin called 'my_hook' is installed",
    ),
    wrong(
        "to switch off a part of hookbus",
        "-p no:checkpoint",
        "",
        4,
        "ERROR: -p no:checkpoint: 'checkpoint' is part of hookbus and cannot be disabled",
    ),
    wrong(
        "to switch off nothing",
        "-p no:",
        "",
        4,
        "ERROR: -p no:: the plugin name is empty",
    ),
    wrong(
        "to put a blank before the name",
        f"{ONE} -p no: one",
        hook("One"),
        4,
        "ERROR: -p no:: the plugin name is empty",
    ),
    wrong(
        "to switch off with two dashes",
        "--no:one",
        "",
        4,
        "ERROR: unrecognized flag --no:one",
    ),
    wrong(
        "to set what is switched off",
        f"{ONE} --one-size 5 -p no:one",
        hook("One", "def __init__(self, size: int = 3): ..."),
        4,
        "ERROR: --one-size 5 sets plugin 'one', which -p no:one switches off; drop one",
    ),
    wrong(
        "to switch off in the environment what is misspelt",
        "-p my_hooks:PrinterHook",
        hook("Printer"),
        WARNING,
        "HOOKBUS_PLUGINS=no:primter: no plugin called 'primter' is installed; …'printer'?",
        env={"HOOKBUS_PLUGINS": "no:primter"},
    ),
    wrong(
        "to switch off in a strict file what is misspelt",
        "",
        "",
        4,
        "ERROR: hookbus.toml:2: plugins = no:primter: no plugin called 'primter'",
        files={"hookbus.toml": "strict_plugins = true\nplugins = 'no:primter'\n"},
    ),
    wrong(
        "to switch off in a variable that is misspelt",
        "",
        "",
        WARNING,
        "HOOKBUS_DISABLE_AUTOLOAD is not read; …'HOOKBUS_DISABLE_PLUGIN_AUTOLOAD'",
        env={"HOOKBUS_DISABLE_AUTOLOAD": "1"},
    ),
    wrong(
        "to switch off all with a word that is no boolean",
        "",
        "",
        4,
        "ERROR: HOOKBUS_DISABLE_PLUGIN_AUTOLOAD='sure': expected one of 1, true, yes, on",
        env={"HOOKBUS_DISABLE_PLUGIN_AUTOLOAD": "sure"},
    ),
    wrong(
        "to switch off behind the script",
        ONE,
        hook("One"),
        WARNING,
        "a flag after the script goes to the script; …flag=-p",
        arguments="-p no:one",
    ),
]

NAMING = [*EVENTS, *MARKS, *OBJECTS, *SETTINGS]
ROWS = [*ORDERING, *NAMING, *BLOCKING]
