"""Lists rows about settings by flags, and about settings that do not fit."""

from __future__ import annotations

from tests.command.row import Row

CLIPPER = "clipper {{'size': {}, 'names': {}, 'norm': {}, 'strict': {}}}"
DEFAULTS = {"size": 3, "names": [], "norm": None, "strict": False}


def clipper(**changed: object) -> tuple[str, ...]:
    """Return the output of the clipper with these settings."""
    return (CLIPPER.format(*(DEFAULTS | changed).values()),)


SPELLED = [
    Row("a flag sets a class", "--clipper-size 5", code=0, shows=clipper(size=5)),
    Row(
        "a flag may have an equals sign", "--clipper-size=5", code=0, shows=clipper(size=5)
    ),
    Row(
        "a flag for the main setting needs no more than the plugin's name",
        "--clipper 5",
        code=0,
        shows=clipper(size=5),
    ),
    Row("-o sets a class", "-o clipper.size=5", code=0, shows=clipper(size=5)),
    Row(
        "-o takes every spelling of the name, and blanks",
        "-o 'fake_clipper.size = 5'",
        code=0,
        shows=clipper(size=5),
    ),
    Row(
        "a flag takes every spelling of the name",
        "--Clipper_size 5",
        code=0,
        shows=clipper(size=5),
    ),
    Row(
        "the last flag wins", "--clipper 5 --clipper-size 6", code=0, shows=clipper(size=6)
    ),
    Row(
        "a list is given with commas",
        "--clipper-names a,b",
        code=0,
        shows=clipper(names=["a", "b"]),
    ),
    Row(
        "a boolean in words, a negative number",
        "--clipper-strict yes --clipper-norm -1",
        code=0,
        shows=clipper(strict=True, norm=-1.0),
    ),
    Row("none as a value clears", "--clipper-norm none", code=0, shows=clipper()),
    Row("a flag sets a module", "--sampler-every 5", code=0, shows="sampler {'every': 5}"),
    Row(
        "a module has a main setting",
        "--sampler 5",
        code=0,
        shows="sampler {'every': 5}",
    ),
    Row("-o sets a module", "-o sampler.every=5", code=0, shows="sampler {'every': 5}"),
    Row(
        "a flag sets an autouse class",
        "--meter-unit min",
        code=0,
        shows="meter {'unit': 'min'}",
    ),
    Row(
        "the longest name that is installed decides whose flag it is",
        "--sampler-rate 5",
        installed="sampler sampler-rate",
        verdicts={"sampler-rate": "on: --sampler-rate 5", "sampler": "on: found"},
        code=0,
        shows=("rate {'rate': 5}", "sampler {'every': 10}"),
    ),
    Row(
        "without the longer name a shorter one decides whose flag it is",
        "--sampler-rate 5",
        installed="sampler",
        code=4,
        tells="ERROR: --sampler-rate 5: plugin 'sampler' has no setting 'rate'; …every",
    ),
]

SWITCHING = [
    Row(
        "a flag switches its plugin on",
        "--clipper-size 5",
        verdicts={"clipper": "on: --clipper-size 5"},
    ),
    Row(
        "-o switches its plugin on",
        "-o clipper.size=5",
        verdicts={"clipper": "on: -o clipper.size=5"},
    ),
    Row(
        "a flag switches its plugin on even where nothing is by itself",
        "--disable-plugin-autoload --sampler-every 5",
        verdicts={
            "sampler": "on: --sampler-every 5",
            "meter": "off: --disable-plugin-autoload",
        },
    ),
    Row(
        "a setting of a plugin that is switched off beside it",
        "--clipper-size 5 -p no:clipper",
        code=4,
        tells="ERROR: --clipper-size 5 sets plugin 'clipper', which -p no:clipper…",
        situation="option of a plugin that is off",
    ),
    Row(
        "a setting of a plugin that is switched off before, in another spelling",
        "-p no:hookbus_clipper -o clipper.size=5",
        code=4,
        tells="ERROR: -o clipper.size=5 sets …'clipper', which -p no:hookbus_clipper …",
    ),
    Row(
        "a setting of a plugin that is switched off and on again",
        "--clipper-size 5 -p no:clipper -p clipper",
        verdicts={"clipper": "on: -p clipper"},
        code=0,
        shows=clipper(size=5),
    ),
    Row(
        "a setting of a module that is kept out by --disable-plugin-autoload alone",
        "--disable-plugin-autoload -o sampler.every=5",
        verdicts={"sampler": "on: -o sampler.every=5"},
        code=0,
        shows=("sampler {'every': 5}", "imported fake_sampler"),
    ),
]

REFUSED = [
    Row(
        "text for a number",
        "--clipper-size big",
        code=4,
        tells="ERROR: --clipper-size big: 'big' is not a whole number",
    ),
    Row(
        "text for a number of a module",
        "--sampler-every soon",
        code=4,
        tells="ERROR: --sampler-every soon: 'soon' is not a whole number",
    ),
    Row(
        "text for a boolean",
        "--clipper-strict maybe",
        code=4,
        tells="ERROR: the script maybe …; the flag --clipper-strict before it takes true",
    ),
    Row(
        "a number that the plugin does not take",
        "--clipper-size 0",
        code=4,
        tells="ERROR: clipper: 'size' must be > 0… Given: --clipper-size 0. Flags: …",
    ),
    Row(
        "a plugin's own usage error",
        "--sampler-every 0",
        code=4,
        tells=(
            "ERROR: --sampler-every must be positive, got 0",
            "raised by plugin 'sampler' (hookbus-sampler 1.0) in configure()",
        ),
        situation="plugin's own usage error",
    ),
    Row(
        "a setting that a plugin nearly has",
        "--clipper-sizes 5",
        code=4,
        tells="ERROR: --clipper-sizes 5: plugin 'clipper' has no setting 'sizes'; …'size'?",
    ),
    Row(
        "a flag that nearly is one",
        "--cliper-size 5",
        code=4,
        tells="ERROR: unrecognized flag --cliper-size; did you mean '--clipper'?",
    ),
    Row("a flag that nobody has", "-x", code=4, tells="ERROR: unrecognized flag -x"),
    Row(
        "a flag without its value",
        "--clipper-size --meter-unit s",
        code=4,
        tells="ERROR: --clipper-size needs a value after it, and --meter-unit looks like…",
    ),
    Row(
        "a value for a flag that takes none",
        "--disable-plugin-autoload=yes",
        code=4,
        tells="ERROR: --disable-plugin-autoload takes no value",
    ),
    Row(
        "settings that do not suffice name the flags that are missing",
        "-p needy",
        installed="needy",
        code=4,
        tells="ERROR: …needy needs the setting --needy-below",
    ),
    Row(
        "-o without a value",
        "-o clipper.size",
        code=4,
        tells="ERROR: -o clipper.size: …",
    ),
    Row(
        "-o of a plugin that nobody has",
        "-o cliper.size=5",
        code=4,
        tells="ERROR: -o cliper.size=5: no plugin called 'cliper'…'clipper'?",
    ),
    Row(
        "a setting of a module that has none",
        "--generous-every 5",
        installed="generous",
        code=4,
        tells="ERROR: --generous-every 5: plugin 'generous' has no settings",
    ),
    Row(
        "a flag after the script is the script's, and is told of",
        arguments="-p no:meter",
        code=0,
        shows="imported fake_meter fake_sampler",
        tells="a flag after the script goes to the script… flag=-p",
    ),
]

KEYS = [
    Row(
        "-o sets hookbus' own keys",
        "-o autoload=no",
        verdicts={"sampler": "off: -o autoload=no", "meter": "off: -o autoload=no"},
        complaint=7,
    ),
    Row(
        "-o plugins takes the place of the file's",
        "-o plugins=clipper,no:meter",
        files={"hookbus.toml": "plugins = ['no:sampler']\n"},
        verdicts={
            "clipper": "on: -o plugins=clipper,no:meter: plugins = clipper",
            "meter": "off: -o plugins=clipper,no:meter: plugins = no:meter",
            "sampler": "on: found",
        },
    ),
    Row(
        "-o strict_plugins makes errors of warnings",
        "-o strict_plugins=true",
        env={"HOOKBUS_PLUGINS": "no:nun"},
        code=4,
        tells="ERROR: HOOKBUS_PLUGINS=no:nun: no plugin called 'nun' is installed",
    ),
    Row(
        "-o log_format has log lines as JSON",
        "-o log_format=json",
        code=0,
        tells=('{"plugins": "meter 1.0, sampler 1.0",…',),
    ),
    Row(
        "-o trace_plugins tells how long plugins take",
        "-o trace_plugins=yes",
        code=0,
        tells="plugin imported plugin=sampler ms=… file=…fake_sampler.py",
    ),
    Row(
        "--trace-plugins is the same",
        "--trace-plugins",
        code=0,
        tells="plugin time plugin=sampler …after_run calls=2",
    ),
    Row(
        "--hook-budget tells what hooks cost",
        "--hook-budget 50%",
        code=0,
        tells="hook costs share=…% secs=… most=… budget=50%",
    ),
    Row(
        "-o hook_budget is the same, also without a sign of percent",
        "-o hook_budget=0.5",
        code=0,
        tells="hook costs share=…% secs=… most=… budget=50%",
    ),
    *[
        Row(
            f"a budget of {text}",
            f"--hook-budget {text}",
            code=4,
            tells=f"ERROR: --hook-budget {text}: hook_budget='{text}': expected a share "
            "above 0% and below 100%, like 2% or 0.02",
        )
        for text in ("0", "abc", "200%", "-1", "nan", "2%%", "100%")
    ],
    Row(
        "a budget without a share",
        "-o hook_budget=",
        code=4,
        tells="ERROR: -o hook_budget=: hook_budget='': expected a share above 0%",
    ),
    Row(
        "--show-step shows the compiled step",
        "--show-step",
        code=0,
        tells=("compiled step", "# Hooks that are left out until they are due: …"),
    ),
    Row(
        "-o of a key that nearly is one",
        "-o plugin=clipper",
        code=4,
        tells="ERROR: -o plugin=clipper: unknown key 'plugin'; did you mean 'plugins'",
    ),
    Row(
        "-o with a value that does not fit",
        "-o autoload=maybe",
        code=4,
        tells="ERROR: -o autoload=maybe: …'maybe': expected one of 1, true, yes, on, 0, …",
    ),
    Row(
        "-o required_plugins",
        "-o required_plugins=hookbus-nun",
        code=4,
        tells="required plugins missing: -o required_plugins=hookbus-nun: hookbus-nun (…",
    ),
]

ROWS = [*SPELLED, *SWITCHING, *REFUSED, *KEYS]
