"""Lists rows about config files: which one counts, and how its mistakes are reported."""

from __future__ import annotations

from tests.command.row import Row
from tests.command.rows.settings import clipper

KINDS = {
    "hookbus.toml": ("", "[clipper]", "'clipper'"),
    "pyproject.toml": ("[tool.hookbus]\n", "[tool.hookbus.clipper]", "'clipper'"),
    "tox.ini": ("[hookbus]\n", "[hookbus.clipper]", "clipper"),
    "setup.cfg": ("[tool:hookbus]\n", "[tool:hookbus.clipper]", "clipper"),
}
"""Each kind of file: its own section, that of a plugin, and a name as its value."""
LINE = {name: 1 + head.count("\n") for name, (head, *_) in KINDS.items()}


def off(name: str) -> str:
    """Return a file of that name in which meter is switched off, in a line by itself."""
    head, _, value = KINDS[name]
    return f"{head}plugins = {value.replace('clipper', 'no:meter')}\n"


EACH = [
    *(
        Row(
            f"{name} switches on",
            files={name: f"{head}plugins = {value}\n"},
            verdicts={"clipper": f"on: {name}:{LINE[name]}: plugins = clipper"},
        )
        for name, (head, _, value) in KINDS.items()
    ),
    *(
        Row(
            f"a section of {name} sets, and does not switch on",
            files={name: f"{head}\n{section}\nsize = 5\n"},
            verdicts={"clipper": "off: not switched on"},
            code=0,
            shows="imported fake_meter fake_sampler",
        )
        for name, (head, section, _) in KINDS.items()
    ),
    *(
        Row(
            f"what a section of {name} sets is there when the plugin is on",
            "-p clipper",
            files={name: f"{head}\n{section}\nsize = 5\n"},
            code=0,
            shows=clipper(size=5),
        )
        for name, (head, section, _) in KINDS.items()
    ),
    *(
        Row(
            f"{name} has it that nothing is on by itself",
            files={name: f"{head}autoload = false\n"},
            verdicts={
                "meter": f"off: {name}:{LINE[name]}…",
                "clipper": "off: not switched on",
            },
            code=0,
            shows="imported",
            complaint=7,
        )
        for name, (head, *_) in KINDS.items()
    ),
    *(
        Row(
            f"an unknown key in {name}",
            files={name: f"{head}plugin = {value}\n"},
            code=4,
            tells=f"ERROR: {name}:{LINE[name]}: unknown key 'plugin'; …'plugins'",
            situation="unknown config key",
        )
        for name, (head, _, value) in KINDS.items()
    ),
    *(
        Row(
            f"a value that does not fit in {name}",
            "-p clipper",
            files={name: f"{head}\n{section}\n\nsize = {value}\n"},
            code=4,
            tells=f"ERROR: {name}:{LINE[name] + 3}: 'clipper' is not a whole number",
        )
        for name, (head, section, value) in KINDS.items()
    ),
    *(
        Row(
            f"a syntax error in {name}",
            files={name: f"{head}\nplugins 'hookbus\n"},
            code=4,
            tells=f"ERROR: {name}:{LINE[name] + 1}: syntax error: ",
        )
        for name, (head, *_) in KINDS.items()
    ),
]

WHICH = [
    Row(
        "hookbus.toml is the strongest, and what stands beside it is told of",
        files={name: off(name) for name in reversed(KINDS)},
        verdicts={"meter": "off: hookbus.toml:1: plugins = no:meter"},
        code=0,
        tells="config=hookbus.toml ignored='pyproject.toml, tox.ini, setup.cfg'",
    ),
    Row(
        "pyproject.toml is stronger than the ini files",
        files={name: off(name) for name in ("setup.cfg", "tox.ini", "pyproject.toml")},
        verdicts={"meter": "off: pyproject.toml:2: plugins = no:meter"},
        code=0,
        tells="config=pyproject.toml ignored='tox.ini, setup.cfg'",
    ),
    Row(
        "tox.ini is stronger than setup.cfg",
        files={name: off(name) for name in ("setup.cfg", "tox.ini")},
        verdicts={"meter": "off: tox.ini:2: plugins = no:meter"},
        code=0,
        tells="config=tox.ini ignored=setup.cfg",
    ),
    Row(
        "files beside each other are not merged",
        files={
            "hookbus.toml": "plugins = ['clipper']\n",
            "tox.ini": "[hookbus]\nplugins = no:meter\n[hookbus.clipper]\nsize = 5\n",
        },
        verdicts={
            "clipper": "on: hookbus.toml:1: plugins = clipper",
            "meter": "on: autouse",
        },
        code=0,
        shows=clipper(),
    ),
    Row(
        "an empty hookbus.toml counts, for nobody else writes it",
        files={"hookbus.toml": "", "tox.ini": "[hookbus]\nplugins = no:meter\n"},
        verdicts={"meter": "on: autouse"},
        code=0,
        tells="config=hookbus.toml ignored=tox.ini",
    ),
    Row(
        "a file without a section of hookbus does not count",
        files={
            "pyproject.toml": "[tool.ruff]\nline-length = 92\n",
            "setup.cfg": "[tool:hookbus]\nplugins = no:meter\n",
        },
        verdicts={"meter": "off: setup.cfg:2: plugins = no:meter"},
    ),
    Row(
        "a file is looked for from the current folder upwards",
        folder="a/b",
        files={"hookbus.toml": "plugins = 'no:meter'\n"},
        verdicts={"meter": "off: …hookbus.toml:1: plugins = no:meter"},
        code=0,
        shows="imported fake_sampler",
    ),
    Row(
        "the nearest file counts, one without a section is passed by",
        folder="a/b",
        files={
            "hookbus.toml": "plugins = 'no:sampler'\n",
            "a/hookbus.toml": "plugins = 'no:meter'\n",
            "a/b/pyproject.toml": "[tool.ruff]\nselect = ['hookbus']\n",
        },
        verdicts={
            "meter": "off: …a/hookbus.toml:1: plugins = no:meter",
            "sampler": "on: found",
        },
    ),
    Row(
        "-c names one, and no other is looked for",
        "-c conf/mine.ini",
        files={
            "conf/mine.ini": "[hookbus]\nplugins = clipper\n",
            "hookbus.toml": "plugins = 'no:meter'\n",
        },
        verdicts={
            "clipper": "on: conf/mine.ini:2: plugins = clipper",
            "meter": "on: autouse",
        },
    ),
    Row(
        "-c of the command line beats that of the environment",
        "-c mine.toml",
        env={"HOOKBUS_ADDOPTS": "-c yours.toml"},
        files={
            "mine.toml": "plugins = 'clipper'\n",
            "yours.toml": "plugins = 'no:meter'\n",
        },
        verdicts={"clipper": "on: mine.toml:1: plugins = clipper", "meter": "on: autouse"},
    ),
    Row(
        "-c names a file that is not there",
        "-c nun.toml",
        code=4,
        tells="ERROR: …nun.toml: No such file or directory",
    ),
    Row(
        "-c names a file without a section",
        "-c tox.ini",
        files={"tox.ini": "[tox]\nenv_list = py\n"},
        code=4,
        tells="ERROR: -c tox.ini: the file has no section for hookbus",
    ),
    Row(
        "-c names a file that is not a config file",
        "-c train.py",
        code=4,
        tells="ERROR: -c train.py: a config file ends in .toml, .ini or .cfg",
    ),
    Row(
        "setup.cfg has a section that is called as in tox.ini",
        files={"setup.cfg": "[hookbus]\nplugins = clipper\n"},
        code=4,
        tells="ERROR: setup.cfg: [hookbus] … put its keys in [tool:hookbus]",
    ),
    Row(
        "pyproject.toml has a section that is called as in tox.ini",
        files={"pyproject.toml": "[hookbus]\nplugins = ['clipper']\n"},
        code=4,
        tells="ERROR: pyproject.toml: [hookbus] … put its keys in [tool.hookbus]",
    ),
    Row(
        "tox.ini has a section that is called as in setup.cfg",
        files={"tox.ini": "[tool:hookbus]\nplugins = clipper\n"},
        code=4,
        tells="ERROR: tox.ini: [tool:hookbus] … put its keys in [hookbus]",
    ),
    Row(
        "hookbus.toml has a section that is called as in pyproject.toml",
        files={"hookbus.toml": "[tool.hookbus]\nplugins = 'clipper'\n"},
        code=4,
        tells="ERROR: hookbus.toml: [tool.hookbus] … put its keys at the top",
    ),
    Row(
        "under plain python the file counts as well",
        command="python",
        files={"hookbus.toml": "plugins = ['clipper', 'no:meter']\n"},
        code=0,
        shows="imported fake_clipper fake_sampler",
    ),
]

KEYS = [
    Row(
        "a list may be one line, several, or the file's own",
        files={"tox.ini": "[hookbus]\nplugins =\n    clipper\n    no:meter\n"},
        verdicts={
            "clipper": "on: tox.ini:2: plugins = clipper",
            "meter": "off: tox.ini:2: plugins = no:meter",
        },
    ),
    Row(
        "a name to switch off in a file may be another machine's",
        files={"hookbus.toml": "plugins = ['no:nun']\n"},
        code=0,
        tells="warning…hookbus.toml:1: plugins = no:nun: no plugin called 'nun'",
        situation="no:nun from config or environment",
    ),
    Row(
        "a name to switch off in a strict file has to be there",
        files={"hookbus.toml": "strict_plugins = true\nplugins = ['no:nun']\n"},
        code=4,
        tells="ERROR: hookbus.toml:2: plugins = no:nun: no plugin called 'nun'",
        situation="no:nun from config or environment",
    ),
    Row(
        "a name to switch on in a file has to be there",
        files={"hookbus.toml": "\nplugins = ['clippr']\n"},
        code=4,
        tells="ERROR: hookbus.toml:2: plugins = clippr: no plugin …did you mean 'clipper'",
    ),
    Row(
        "a section of a plugin that nobody has",
        files={"hookbus.toml": "\n[clippr]\nsize = 5\n"},
        code=4,
        tells="ERROR: hookbus.toml:2: a section for 'clippr', …; did you mean 'clipper'?",
    ),
    Row(
        "a setting in a file that a plugin nearly has",
        "-p clipper",
        files={"hookbus.toml": "[clipper]\nsizes = 5\n"},
        code=4,
        tells="ERROR: hookbus.toml:2: plugin 'clipper' has no setting 'sizes'; …'size'?",
    ),
    Row(
        "a section may be called by any name of the plugin",
        "-p clipper",
        files={"hookbus.toml": "[fake_clipper]\nsize = 5\n"},
        code=0,
        shows=clipper(size=5),
    ),
    Row(
        "a module is set by its section, which needs no word to be on",
        files={"hookbus.toml": "[sampler]\nevery = 5\n"},
        verdicts={"sampler": "on: found"},
        code=0,
        shows="sampler {'every': 5}",
    ),
    Row(
        "a file has native values: number, boolean, list",
        "-p clipper",
        files={
            "hookbus.toml": "[clipper]\nnorm = 2\nstrict = true\nnames = ['a, b', 'c']\n"
        },
        code=0,
        shows=clipper(norm=2.0, strict=True, names=["a, b", "c"]),
    ),
    Row(
        "a list in a file for a number",
        "-p clipper",
        files={"hookbus.toml": "[clipper]\nsize = [1, 2]\n"},
        code=4,
        tells="ERROR: hookbus.toml:2: expected a whole number, not a list",
    ),
    Row(
        "keys that an ini file has for all of its sections",
        files={"tox.ini": "[DEFAULT]\nx = 1\n[hookbus]\nplugins = no:meter\n"},
        verdicts={"meter": "off: tox.ini:4: plugins = no:meter"},
    ),
    Row(
        "a pyproject.toml that has something else for tools",
        files={"pyproject.toml": "tool = 'hookbus'\n"},
        verdicts={"meter": "on: autouse"},
    ),
    Row(
        "hookbus's section is not a table",
        files={"pyproject.toml": "[tool]\nhookbus = 3\n"},
        code=4,
        tells="ERROR: pyproject.toml: tool.hookbus is not a table",
    ),
    Row(
        "a value that hookbus' own key cannot have",
        files={"pyproject.toml": "[tool.hookbus]\n\nautoload = 'maybe'\n"},
        code=4,
        tells="ERROR: pyproject.toml:3: autoload='maybe': expected one of 1, true, yes, …",
    ),
    Row(
        "a list in a file for a boolean",
        files={"hookbus.toml": "autoload = [true]\n"},
        code=4,
        tells="ERROR: hookbus.toml:1: autoload: expected one value, not a list",
    ),
    Row(
        "a date in a file",
        files={"hookbus.toml": "autoload = 2020-01-01\n"},
        code=4,
        tells="ERROR: hookbus.toml:1: autoload: expected text, a number, …",
    ),
    Row(
        "a file with a name that is empty",
        files={"hookbus.toml": "plugins = ['no:']\n"},
        code=4,
        tells="ERROR: hookbus.toml:1: plugins = no:: the plugin name is empty",
    ),
    Row(
        "a file has log lines as JSON",
        files={"hookbus.toml": "log_format = 'json'\n"},
        code=0,
        tells=('{"plugins": …',),
    ),
    Row(
        "a section of a plugin that the file switches off waits",
        files={"hookbus.toml": "plugins = ['no:clipper']\n[clipper]\nsize = 5\n"},
        verdicts={"clipper": "off: hookbus.toml:1: plugins = no:clipper"},
        code=0,
    ),
]

ADDOPTS = [
    Row(
        "addopts of a file are a weak command line",
        "-p meter",
        files={"tox.ini": "[hookbus]\naddopts = -p no:meter -p no:sampler\n"},
        verdicts={
            "meter": "on: -p meter",
            "sampler": "off: -p no:sampler (from tox.ini:2)",
        },
    ),
    Row(
        "unlike a section, addopts switch on",
        files={"hookbus.toml": "addopts = ['--clipper-size', '5']\n"},
        verdicts={"clipper": "on: --clipper-size 5 (from hookbus.toml:1)"},
        code=0,
        shows=clipper(size=5),
    ),
    Row(
        "a setting in addopts waits where the file switches its plugin off",
        files={"hookbus.toml": "addopts = '--clipper-size 5'\nplugins = 'no:clipper'\n"},
        verdicts={"clipper": "off: hookbus.toml:2: plugins = no:clipper"},
        code=0,
    ),
    Row(
        "an unknown flag in addopts",
        files={"setup.cfg": "[tool:hookbus]\n\naddopts = --zzz\n"},
        code=4,
        tells="ERROR: unrecognized flag --zzz (from setup.cfg:3)",
    ),
    Row(
        "a value in addopts that does not fit",
        files={"hookbus.toml": "addopts = '--clipper-size big'\n"},
        code=4,
        tells="ERROR: --clipper-size big (from hookbus.toml:1): 'big' is not a whole…",
    ),
    Row(
        "a name in addopts that nobody has",
        files={"hookbus.toml": "addopts = '-p zzz'\n"},
        code=4,
        tells="ERROR: -p zzz (from hookbus.toml:1): no plugin or module called 'zzz'",
    ),
    Row(
        "a file in addopts",
        files={"hookbus.toml": "addopts = '-c other.toml'\n"},
        code=4,
        tells="ERROR: hookbus.toml:1: addopts cannot hold -c",
    ),
    Row(
        "-o addopts takes the place of the file's",
        "-o 'addopts=-p no:meter'",
        files={"hookbus.toml": "addopts = '-p no:sampler'\n"},
        verdicts={
            "meter": "off: -p no:meter (from -o addopts=-p no:meter)",
            "sampler": "on: found",
        },
    ),
    Row(
        "a quotation in addopts that is not closed",
        files={"tox.ini": "[hookbus]\naddopts = -p 'clipper\n"},
        code=4,
        tells="ERROR: tox.ini:2: addopts=…: No closing quotation",
    ),
]

ROWS = [*EACH, *WHICH, *KEYS, *ADDOPTS]
