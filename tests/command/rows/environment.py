"""Lists rows about plugins that the environment names."""

from __future__ import annotations

from tests.command.row import Row
from tests.command.rows.settings import clipper

NO_AUTOLOAD = "HOOKBUS_DISABLE_PLUGIN_AUTOLOAD"
BOOLEANS = "1, true, yes, on, 0, false, no, off"

PLUGINS = [
    Row(
        "the environment switches on and off, and may have blanks",
        env={"HOOKBUS_PLUGINS": "clipper, no:meter"},
        verdicts={
            "clipper": "on: HOOKBUS_PLUGINS=clipper",
            "meter": "off: HOOKBUS_PLUGINS=no:meter",
            "sampler": "on: found",
        },
        code=0,
        shows="imported fake_clipper fake_sampler",
        tells="plugins='sampler 1.0, clipper 1.0 (HOOKBUS_PLUGINS=clipper)'",
        complaint=9,
    ),
    Row(
        "the last word of the environment wins",
        env={"HOOKBUS_PLUGINS": "no:clipper,clipper"},
        verdicts={"clipper": "on: HOOKBUS_PLUGINS=clipper"},
    ),
    *(
        Row(
            f"nothing is said by {text!r}",
            env={"HOOKBUS_PLUGINS": text},
            verdicts={"meter": "on: autouse", "clipper": "off: not switched on"},
        )
        for text in ("", " , ")
    ),
    Row(
        "under plain python the environment counts as well",
        command="python",
        env={"HOOKBUS_PLUGINS": "clipper,no:sampler"},
        code=0,
        shows=("clipper …", "imported fake_clipper fake_meter"),
    ),
    Row(
        "under plain python mistakes are Python's own exceptions",
        command="python",
        env={"HOOKBUS_PLUGINS": "clippr"},
        code=1,
        tells="UsageError: HOOKBUS_PLUGINS=clippr: no plugin …; did you mean 'clipper'?",
    ),
    Row(
        "a name to switch off in the environment may be another machine's",
        env={"HOOKBUS_PLUGINS": "no:nun"},
        verdicts={"nun": "missing: HOOKBUS_PLUGINS=no:nun"},
        code=0,
        tells="warning… HOOKBUS_PLUGINS=no:nun: no plugin called 'nun' is installed",
        situation="no:nun from config or environment",
    ),
    Row(
        "a name to switch off in the environment has to be there if plugins are strict",
        "--strict-plugins",
        env={"HOOKBUS_PLUGINS": "no:nun"},
        code=4,
        tells="ERROR: HOOKBUS_PLUGINS=no:nun: no plugin called 'nun' is installed",
    ),
    Row(
        "plugins that are all there may be strict",
        "--strict-plugins",
        env={"HOOKBUS_PLUGINS": "no:meter"},
        code=0,
        shows="imported fake_sampler",
    ),
    Row(
        "a name to switch on in the environment has to be there",
        env={"HOOKBUS_PLUGINS": "zzz"},
        code=4,
        tells="ERROR: HOOKBUS_PLUGINS=zzz: no plugin or module called 'zzz'",
    ),
    Row(
        "the environment cannot switch off a part of hookbus",
        env={"HOOKBUS_PLUGINS": "no:bus"},
        code=4,
        tells="ERROR: HOOKBUS_PLUGINS=no:bus: 'bus' is part of hookbus and cannot…",
    ),
    Row(
        "a name is missing in the environment",
        env={"HOOKBUS_PLUGINS": "no:"},
        code=4,
        tells="ERROR: HOOKBUS_PLUGINS=no:: the plugin name is empty",
    ),
    Row(
        "a variable whose name is nearly right is told of",
        env={"HOOKBUS_PLUGIN": "no:meter"},
        code=0,
        shows="imported fake_meter fake_sampler",
        tells="HOOKBUS_PLUGIN is not read; did you mean 'HOOKBUS_PLUGINS'?",
    ),
    Row(
        "a variable that means nothing is told of with those that do",
        env={"HOOKBUS_CONFIG": "my.toml"},
        code=0,
        tells=(
            "HOOKBUS_CONFIG is not read; hookbus reads HOOKBUS_PLUGINS, HOOKBUS_ADDOPTS, "
            f"{NO_AUTOLOAD}"
        ),
    ),
]

AUTOLOAD = [
    *(
        Row(
            f"{text!r} keeps out what is on by itself",
            env={NO_AUTOLOAD: text},
            verdicts={
                "sampler": f"off: {NO_AUTOLOAD}={text}",
                "meter": f"off: {NO_AUTOLOAD}={text}",
                "clipper": "off: not switched on",
            },
        )
        for text in ("1", "true", "yes", "on", "TRUE", "Yes")
    ),
    *(
        Row(
            f"{text!r} does not keep it out",
            env={NO_AUTOLOAD: text},
            verdicts={"sampler": "on: found", "meter": "on: autouse"},
            complaint=8,
        )
        for text in ("0", "false", "no", "off", "OFF", "", " ")
    ),
    *(
        Row(
            f"{text!r} is no boolean",
            env={NO_AUTOLOAD: text},
            code=4,
            tells=f"ERROR: {NO_AUTOLOAD}={text!r}: expected one of {BOOLEANS}",
            situation="bad boolean",
        )
        for text in ("maybe", "2")
    ),
    Row(
        "a named plugin is on anyway, and nothing else is imported",
        "-p clipper",
        env={NO_AUTOLOAD: "1", "HOOKBUS_PLUGINS": "sampler"},
        verdicts={
            "sampler": "on: HOOKBUS_PLUGINS=sampler",
            "clipper": "on: -p clipper",
            "meter": f"off: {NO_AUTOLOAD}=1",
        },
        code=0,
        shows="imported fake_clipper fake_sampler",
    ),
    Row(
        "--disable-plugin-autoload is stronger than the variable",
        "--disable-plugin-autoload",
        env={NO_AUTOLOAD: "0"},
        verdicts={"meter": "off: --disable-plugin-autoload"},
    ),
    Row(
        "-o autoload is stronger than the variable",
        "-o autoload=true",
        env={NO_AUTOLOAD: "1"},
        verdicts={"meter": "on: autouse", "sampler": "on: found"},
    ),
    Row(
        "the variable is stronger than autoload in a file",
        files={"hookbus.toml": "autoload = false\n"},
        env={NO_AUTOLOAD: "0"},
        verdicts={"meter": "on: autouse"},
    ),
]

ADDOPTS = [
    Row(
        "HOOKBUS_ADDOPTS has flags that stand before those of the command line",
        "-p meter",
        env={"HOOKBUS_ADDOPTS": "-p no:meter -p no:sampler"},
        verdicts={
            "meter": "on: -p meter",
            "sampler": "off: -p no:sampler (from HOOKBUS_ADDOPTS)",
        },
    ),
    Row(
        "HOOKBUS_ADDOPTS sets, and so switches on",
        env={"HOOKBUS_ADDOPTS": "--clipper-size 5 -o clipper.norm=2"},
        verdicts={"clipper": "on: -o clipper.norm=2 (from HOOKBUS_ADDOPTS)"},
        code=0,
        shows=clipper(size=5, norm=2.0),
    ),
    Row(
        "HOOKBUS_ADDOPTS is taken apart as a shell does",
        env={"HOOKBUS_ADDOPTS": "--meter-unit 'a step'"},
        code=0,
        shows="meter {'unit': 'a step'}",
    ),
    Row(
        "HOOKBUS_ADDOPTS names a config file",
        env={"HOOKBUS_ADDOPTS": "-c other.toml"},
        files={"other.toml": "plugins = 'no:meter'\n"},
        verdicts={"meter": "off: other.toml:1: plugins = no:meter"},
    ),
    Row(
        "a setting of the environment waits where a flag switches its plugin off",
        "-p no:clipper",
        env={"HOOKBUS_ADDOPTS": "--clipper-size 5"},
        verdicts={"clipper": "off: -p no:clipper"},
        code=0,
        shows="imported fake_meter fake_sampler",
    ),
    Row(
        "a setting of the environment waits where it switches off its plugin itself",
        env={"HOOKBUS_ADDOPTS": "--clipper-size 5", "HOOKBUS_PLUGINS": "no:clipper"},
        verdicts={"clipper": "off: HOOKBUS_PLUGINS=no:clipper"},
        code=0,
        shows="imported fake_meter fake_sampler",
    ),
    Row(
        "a setting that waited is there when the plugin is switched on",
        "-p clipper",
        env={"HOOKBUS_ADDOPTS": "--clipper-size 5", "HOOKBUS_PLUGINS": "no:clipper"},
        verdicts={"clipper": "on: -p clipper"},
        code=0,
        shows=clipper(size=5),
    ),
    Row(
        "an unknown flag in HOOKBUS_ADDOPTS",
        env={"HOOKBUS_ADDOPTS": "--zzz 3"},
        code=4,
        tells="ERROR: unrecognized flag --zzz (from HOOKBUS_ADDOPTS)",
        situation="option of a plugin that is off",
    ),
    Row(
        "a value in HOOKBUS_ADDOPTS that does not fit",
        env={"HOOKBUS_ADDOPTS": "--clipper-size big"},
        code=4,
        tells="ERROR: --clipper-size big (from HOOKBUS_ADDOPTS): 'big' is not a whole…",
    ),
    Row(
        "a name in HOOKBUS_ADDOPTS that nobody has",
        env={"HOOKBUS_ADDOPTS": "-p zzz"},
        code=4,
        tells="ERROR: -p zzz (from HOOKBUS_ADDOPTS): no plugin or module called 'zzz'",
    ),
    Row(
        "a script in HOOKBUS_ADDOPTS",
        env={"HOOKBUS_ADDOPTS": "train.py"},
        code=4,
        tells="ERROR: HOOKBUS_ADDOPTS has 'train.py', which is not a flag",
    ),
    Row(
        "a quotation in HOOKBUS_ADDOPTS that is not closed",
        env={"HOOKBUS_ADDOPTS": "-p 'clipper"},
        code=4,
        tells="ERROR: HOOKBUS_ADDOPTS=…: No closing quotation",
    ),
]

ROWS = [*PLUGINS, *AUTOLOAD, *ADDOPTS]
