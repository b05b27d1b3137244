"""Plugins that are missing, too old, there twice or broken, and what works anyway."""

from __future__ import annotations

from tests.command.row import Row


def requiring(*texts: str) -> dict[str, str]:
    """Return a file that requires some distributions."""
    return {"hookbus.toml": f"required_plugins = {list(texts)}\n"}


REQUIRED = [
    Row("what is required is there", files=requiring("hookbus-sampler"), code=0),
    Row(
        "a plugin's name stands for its distribution",
        files=requiring("sampler>=0.5", "clipper==1.0"),
        code=0,
    ),
    Row(
        "a class counts though it is not switched on",
        files=requiring("hookbus-clipper>=0.2,<2"),
        verdicts={"clipper": "off: not switched on"},
        code=0,
    ),
    Row(
        "all that is missing is told at once, each with why",
        "-p no:meter",
        files=requiring(
            "hookbus-clipper>=2", "hookbus-foo", "hookbus-meter", "hookbus-sampler"
        ),
        code=4,
        tells=(
            "ERROR: required plugins missing: hookbus.toml:1: "
            "hookbus-clipper>=2 (installed: 1.0), hookbus-foo (not installed), "
            "hookbus-meter (off: -p no:meter)",
        ),
        situation="required missing",
    ),
    Row(
        "what nobody loads because nothing is on by itself is missing",
        "--disable-plugin-autoload",
        files=requiring("hookbus-sampler"),
        code=4,
        tells="hookbus-sampler (off: --disable-plugin-autoload)",
    ),
    Row(
        "what is named is there again, also by its module",
        "--disable-plugin-autoload -p fake_sampler",
        files=requiring("hookbus-sampler"),
        code=0,
        shows="imported fake_sampler",
        complaint=5,
    ),
    Row(
        "what is required is no requirement",
        files=requiring("hookbus sampler"),
        code=4,
        tells="ERROR: hookbus.toml:1: required_plugins: 'hookbus sampler' is no…",
    ),
    Row("hookbus itself is required, and fits", files=requiring("hookbus>=0.1"), code=0),
    Row(
        "hookbus itself is required, and too old",
        files=requiring("hookbus>=99"),
        code=4,
        tells="required plugins missing: hookbus.toml:1: hookbus>=99 (installed: 0.1.0)",
    ),
    Row(
        "a list of what is required in an ini file",
        files={
            "tox.ini": "[hookbus]\nrequired_plugins =\n    hookbus-foo\n    hookbus-bar>1\n"
        },
        code=4,
        tells="tox.ini:2: hookbus-foo (not installed), hookbus-bar>1 (not installed)",
    ),
    Row(
        "a range of versions that is required in an ini file",
        files={"tox.ini": "[hookbus]\nrequired_plugins = hookbus-clipper>=0.2,<2\n"},
        code=0,
    ),
    Row(
        "what is required elsewhere is not missing here",
        files=requiring("hookbus-foo; sys_platform == 'nowhere'"),
        code=0,
    ),
    Row(
        "a command that only shows warns of it",
        command="plugins",
        files=requiring("hookbus-foo"),
        code=0,
        tells="required plugins missing: …hookbus-foo (not installed)",
    ),
]

NEEDS = "plugin 'future' (hookbus-future 1.0) needs hookbus>=99, this is hookbus 0.1"
VERSIONS = [
    Row("a plugin for this hookbus", "-p past", installed="past", code=0, shows="past …"),
    Row(
        "a plugin for another hookbus is refused before it is imported",
        "-p future",
        installed="future",
        verdicts={"future": f"broken: {NEEDS}…"},
        code=3,
        tells=f"PLUGIN ERROR: {NEEDS}",
        situation="incompatible version",
        complaint=12,
    ),
    Row(
        "a plugin for another hookbus that is off harms nobody",
        installed="future sampler",
        verdicts={"sampler": "on: found"},
        code=0,
        shows="imported fake_sampler",
    ),
    Row(
        "what only an extra needs does not count",
        "-p extra",
        installed="extra",
        code=0,
        shows="extra …",
    ),
]

TWO = "two distributions provide plugin '{}': acme-{} 3.0 and hookbus-{} 1.0; uninstall"
RIVALS = [
    Row(
        "two distributions of one name that is off harm nobody",
        installed="clipper acme-clipper sampler",
        code=0,
        shows="imported fake_sampler",
    ),
    Row(
        "two distributions of one name that is on stop a run",
        "-p clipper",
        installed="clipper acme-clipper",
        verdicts={"clipper": f"broken: {TWO.format(*['clipper'] * 3)}…"},
        code=3,
        tells=f"PLUGIN ERROR: {TWO.format(*['clipper'] * 3)}…-p no:clipper",
        situation="two dists, one name",
        complaint=6,
    ),
    Row(
        "two modules of one name stop a run, as they are on by themselves",
        installed="acme-sampler sampler",
        code=3,
        tells=f"PLUGIN ERROR: {TWO.format(*['sampler'] * 3)}…-p no:sampler",
    ),
    Row(
        "two modules of one name that is kept out harm nobody",
        "-p no:sampler",
        installed="acme-sampler sampler",
        verdicts={"sampler": "off: -p no:sampler"},
        code=0,
        shows="imported",
    ),
    Row(
        "one distribution that is found twice is one",
        installed="sampler sampler clipper clipper",
        verdicts={"sampler": "on: found"},
        code=0,
        shows="imported fake_sampler",
    ),
]

WHO = "cannot load plugin 'broken' (hookbus-broken 1.0, entry point fake_broken)"
NO_MODULE = "ModuleNotFoundError: No module named 'nosuchdep' (…fake_broken.py:1)"
BROKEN = [
    Row(
        "a plugin that is on and does not load stops the run, in three lines",
        installed="sampler broken",
        code=3,
        tells=(
            f"PLUGIN ERROR: {WHO}, which is on because of: found",
            NO_MODULE,
            "Run without it: -p no:broken …Remove it: pip uninstall hookbus-broken",
        ),
        situation="import fails",
        complaint=2,
    ),
    Row(
        "all that do not load are told at once",
        "-p cracked -p future",
        installed="broken quitter cracked future sampler",
        code=3,
        tells=(
            "cannot load plugin 'broken'",
            "cannot load plugin 'cracked' … on because of: -p cracked",
            "ZeroDivisionError: division by zero (…fake_cracked.py:1)",
            "cannot load plugin 'quitter'",
            "SystemExit: 0 (…fake_quitter.py:1)",
            NEEDS,
        ),
    ),
    Row(
        "a broken plugin that is kept out harms nobody",
        "-p no:broken",
        installed="sampler broken",
        code=0,
        shows="imported fake_sampler",
    ),
    Row(
        "a class that nobody asked for may be broken",
        installed="sampler cracked",
        code=0,
        shows="imported fake_sampler",
    ),
    Row(
        "an entry point that cannot be read harms nobody while it is off",
        "-p no:malformed",
        installed="sampler malformed",
        verdicts={"sampler": "on: found", "malformed": "off: -p no:malformed"},
        code=0,
        shows="imported fake_sampler",
    ),
    Row(
        "an entry point that cannot be read is a plugin that does not load",
        installed="malformed",
        code=3,
        tells="PLUGIN ERROR: …malformed",
    ),
    Row(
        "a policy for errors of events does not make it load",
        "--cracked-on-error warn",
        installed="cracked",
        code=3,
        tells="cannot load plugin 'cracked'",
    ),
    *(
        Row(
            f"with broken plugins `hookbus {command} {flags}` works",
            flags,
            command=command,
            installed="sampler broken quitter cracked",
            code=0,
            shows=shows,
            complaint=1,
        )
        for command, flags, shows in (
            ("plugins", "-p cracked", ("broken …", "cracked … broken …", "quitter …")),
            (
                "plugins --load",
                "-p cracked",
                ("broken … broken … No module named 'nosuchdep'…", "sampler … on"),
            ),
            ("plugins --json", "", ('…"name": "broken",',)),
            ("why broken", "", ("broken is on: found",)),
            ("why cracked", "-p cracked", ("cracked is on: -p cracked",)),
            (
                "hooks",
                "-p cracked",
                (f"broken: broken: {NO_MODULE}", "cracked: broken: Zero…"),
            ),
            (
                "run --help",
                "",
                (
                    f"  broken: broken: {NO_MODULE}",
                    "  --sampler, --sampler-every INT",
                    "…(default 10)",
                ),
            ),
            ("--help", "", ("usage: hookbus COMMAND …",)),
            ("--version", "", ("hookbus 0.1…",)),
        )
    ),
]

MISFITS = [
    Row(
        "a function that is marked and no event",
        installed="typo",
        code=3,
        tells="plugin 'typo' …'before_rum' is not an event; …'before_run'…typo.py:3)",
        situation="unknown hook",
    ),
    Row(
        "an argument that the event does not have",
        installed="greedy",
        code=3,
        tells="plugin 'greedy' …before_run() takes 'banana', …run_context…greedy.py:3)",
        situation="bad argument",
    ),
    Row(
        "a hook that compares by value",
        "-p equal",
        installed="equal",
        code=3,
        tells="plugin 'equal' …EqualHook compares by value…@attrs.define(eq=False)",
        situation="eq or unhashable plugin object",
    ),
    Row(
        "an argument with a default that the event does not have keeps it",
        installed="generous",
        code=0,
        shows="factor 2",
        complaint=11,
    ),
]

FAST = [
    Row(
        "of many that are installed, only those that are on are imported",
        "--disable-plugin-autoload -p clipper",
        installed="sampler clipper meter broken cracked quitter future past pair needy",
        code=0,
        shows="imported fake_clipper",
        complaint=13,
    ),
    Row(
        "events that a plugin takes part in show without an import",
        command="plugins -v",
        installed="sampler quitter",
        code=0,
        shows=("sampler is on: found", "  events     addoption, configure, after_run"),
        complaint=14,
    ),
    Row(
        "a plugin that is off is called by no event",
        "-p no:sampler",
        command="hooks after_run",
        code=0,
        shows="no plugin is called",
        complaint=15,
    ),
]

ROWS = [*REQUIRED, *VERSIONS, *RIVALS, *BROKEN, *MISFITS, *FAST]
