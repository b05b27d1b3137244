"""Lists rows about the names of plugins, those on by default, and the last word."""

from __future__ import annotations

from tests.command.row import Row

ON_BY_ITSELF = [
    Row(
        "without a word, modules and autouse classes are on",
        verdicts={
            "sampler": "on: found",
            "meter": "on: autouse",
            "clipper": "off: not switched on",
        },
        code=0,
        shows=(
            "sampler {'every': 10}",
            "meter {'unit': 's'}",
            "imported fake_meter fake_sampler",
        ),
        tells="hookbus … plugins='meter 1.0, sampler 1.0'",
    ),
    Row(
        "nothing is installed, and a run goes on without",
        installed="",
        code=0,
        shows="imported",
    ),
    Row(
        "nothing is installed, and the list says so",
        installed="",
        command="plugins",
        code=0,
        shows="no plugins are installed",
    ),
    Row(
        "the order is that of the names, but for what plugins wish themselves",
        installed="sampler urgent",
        command="hooks after_run",
        code=0,
        shows=(
            "after_run  1 … urgent … - … found, before=sampler",
            "after_run  2 … sampler … - … found",
        ),
        complaint=10,
    ),
]

WORDS = [
    Row("-p switches a class on", "-p clipper", verdicts={"clipper": "on: -p clipper"}),
    Row(
        "-p and its name may be one word",
        "-pclipper",
        verdicts={"clipper": "on: -p clipper"},
    ),
    Row(
        "blanks around a name do not count",
        "-p ' clipper '",
        verdicts={"clipper": "on: -p clipper"},
    ),
    Row(
        "what is switched on takes part, and the header says who said so",
        "-p clipper",
        code=0,
        shows=("clipper {'size': 3, …}", "imported fake_clipper fake_meter fake_sampler"),
        tells="plugins='meter 1.0, sampler 1.0, clipper 1.0 (-p clipper)'",
        complaint=4,
    ),
    Row(
        "-p no: keeps a module out",
        "-p no:sampler",
        verdicts={"sampler": "off: -p no:sampler"},
        code=0,
        shows="imported fake_meter",
        tells="off='sampler (-p no:sampler)'",
    ),
    Row(
        "-pno: keeps an autouse class out",
        "-pno:meter",
        verdicts={"meter": "off: -p no:meter"},
        code=0,
        shows="imported fake_sampler",
    ),
    Row(
        "a class that is off anyway can be switched off",
        "-p no:clipper",
        verdicts={"clipper": "off: -p no:clipper"},
        code=0,
    ),
    Row(
        "the last word wins: off, and nothing of it was imported",
        "-p clipper -p no:clipper",
        verdicts={"clipper": "off: -p no:clipper"},
        code=0,
        shows="imported fake_meter fake_sampler",
    ),
    Row(
        "the last word wins: on",
        "-p no:sampler -p sampler",
        verdicts={"sampler": "on: -p sampler"},
    ),
    Row(
        "the last word wins, whatever spelling the words have",
        "-p hookbus-clipper -p no:fake_clipper",
        verdicts={"clipper": "off: -p no:fake_clipper"},
    ),
    Row(
        "switching on what is on already is no mistake",
        "-p sampler -p fake_sampler",
        verdicts={"sampler": "on: -p fake_sampler"},
        code=0,
        shows="imported fake_meter fake_sampler",
        complaint=6,
    ),
]

SPELLINGS = [
    *(
        Row(
            f"a class is called {name}",
            f"-p {name}",
            verdicts={"clipper": f"on: -p {name}"},
        )
        for name in (
            "Clipper",
            "CLIPPER",
            "hookbus-clipper",
            "hookbus_clipper",
            "Hookbus.Clipper",
            "fake_clipper",
            "fake-clipper",
            "fake_clipper:ClipperHook",
        )
    ),
    *(
        Row(
            f"a module is kept out as {name}",
            f"-p no:{name}",
            verdicts={"sampler": f"off: -p no:{name}"},
        )
        for name in ("Sampler", "hookbus-sampler", "hookbus_sampler", "fake_sampler")
    ),
    Row(
        "by the name of its module an installed plugin is itself, once",
        "-p fake_clipper:ClipperHook -p fake_sampler",
        verdicts={"clipper": "on: -p fake_clipper:ClipperHook"},
        code=0,
        shows="imported fake_clipper fake_meter fake_sampler",
        tells="sampler 1.0 (-p fake_sampler), clipper 1.0 (-p fake_clipper:ClipperHook)",
        complaint=5,
    ),
    Row(
        "an entry point may be spelled in any way",
        "-p big-name",
        installed="acme-tools",
        verdicts={"big-name": "on: -p big-name"},
    ),
    Row(
        "a distribution of any name stands for its one plugin",
        "-p acme-tools",
        installed="acme-tools",
        verdicts={"big-name": "on: -p acme-tools"},
    ),
    Row(
        "a distribution with two plugins can mean both",
        "-p hookbus-pair",
        installed="pair",
        code=4,
        tells="ERROR: -p hookbus-pair: 'hookbus-pair' can mean left or right; name one",
    ),
    Row(
        "a module with two plugins can mean both, to switch off as well",
        installed="pair",
        env={"HOOKBUS_PLUGINS": "no:fake_pair"},
        code=4,
        tells="ERROR: HOOKBUS_PLUGINS=no:fake_pair: 'fake_pair' can mean left or right",
    ),
    Row(
        "of two plugins in one module, one can be on",
        "-p left",
        installed="pair",
        verdicts={"left": "on: -p left", "right": "off: not switched on"},
        code=0,
        shows="left {'size': 3}",
    ),
]

MISTAKEN = [
    Row(
        "a name to switch on that nobody has",
        "-p zzz",
        code=4,
        tells=(
            "ERROR: -p zzz: no plugin or module called 'zzz'; installed plugins: "
            "clipper, meter, sampler",
        ),
        situation="-p zzz",
    ),
    Row(
        "a name to switch on that somebody nearly has",
        "-p clippr",
        code=4,
        tells="ERROR: -p clippr: no plugin or module … did you mean 'clipper'?",
    ),
    Row(
        "several names after one -p",
        "-p clipper,meter",
        code=4,
        tells="ERROR: -p clipper,meter: no plugin or module called 'clipper,meter'",
    ),
    Row(
        "a name to switch off that nobody has",
        "-p no:nun",
        code=4,
        tells="ERROR: -p no:nun: no plugin called 'nun' is installed",
    ),
    Row(
        "a name to switch off that somebody nearly has",
        "-p no:samplr",
        code=4,
        tells=(
            "ERROR: -p no:samplr: no plugin called 'samplr' is installed; "
            "did you mean '-p no:sampler'?",
        ),
        situation="-p no:nun",
    ),
    Row(
        "a part of hookbus cannot be switched off",
        "-p no:session",
        code=4,
        tells="ERROR: -p no:session: 'session' is part of hookbus and cannot be disabled",
        situation="-p no:session",
    ),
    Row(
        "a part of hookbus cannot be switched on",
        "-p bus",
        code=4,
        tells="ERROR: -p bus: 'bus' is part of hookbus and is always on",
    ),
    Row(
        "no name at all",
        "-p ''",
        code=4,
        tells="ERROR: -p …empty",
    ),
    Row(
        "no name to switch off",
        "-p no:",
        code=4,
        tells="ERROR: -p no:: the plugin name is empty",
        situation="empty or missing argument",
    ),
    Row(
        "no argument at all",
        command="plugins -p",
        code=4,
        tells="ERROR: -p needs a value after it",
        situation="empty or missing argument",
    ),
    Row(
        "another flag where a name should be",
        "-p --clipper-size 5",
        code=4,
        tells="ERROR: -p needs a value after it, and --clipper-size looks like…",
    ),
]

LOCAL = {
    "my_module.py": """\
        import hookbus

        @hookbus.hookimpl
        def addoption(group):
            group.add("every", int, default=10)

        @hookbus.hookimpl
        def configure(options):
            print("mine", dict(options))
        """,
    "my_class.py": """\
        import attrs, hookbus

        @attrs.define(eq=False)
        class FineGrainedHook(hookbus.SessionRunHook):
            size: int = 3

            def begin(self):
                print("mine", self.size)
        """,
    "my_tools.py": "def helper(): ...\n",
    "my_broken.py": "import nosuchdep\n",
}
LOCAL_MODULES = [
    Row(
        "a module beside the script is a plugin if it is named",
        "-p my_module",
        files=LOCAL,
        verdicts={"my-module": "on: -p my_module"},
        code=0,
        shows=("mine {'every': 10}", "imported fake_meter fake_sampler my_module"),
        tells="my-module (-p my_module)",
        complaint=9,
    ),
    Row(
        "a module beside the script has flags of its own",
        "-p my_module --my-module-every 5",
        files=LOCAL,
        code=0,
        shows="mine {'every': 5}",
    ),
    Row(
        "a module beside the script can be switched off again",
        "-p my_module -p no:my-module",
        files=LOCAL,
        verdicts={"my-module": "off: -p no:my-module"},
        code=0,
        shows="imported fake_meter fake_sampler",
    ),
    Row(
        "a class beside the script is called as it would be in code",
        "-p my_class:FineGrainedHook",
        files=LOCAL,
        verdicts={"fine-grained": "on: -p my_class:FineGrainedHook"},
        code=0,
        shows="mine 3",
    ),
    Row(
        "a class beside the script has flags of its own",
        "-p my_class:FineGrainedHook --fine-grained-size 5",
        files=LOCAL,
        code=0,
        shows="mine 5",
    ),
    Row(
        "the environment can also name a module",
        env={"HOOKBUS_PLUGINS": "my_module"},
        files=LOCAL,
        verdicts={"my-module": "on: HOOKBUS_PLUGINS=my_module"},
    ),
    Row(
        "a file can name a module and set it",
        files=LOCAL | {"hookbus.toml": "plugins = ['my_module']\n[my_module]\nevery = 4\n"},
        verdicts={"my-module": "on: hookbus.toml:1: plugins = my_module"},
        code=0,
        shows="mine {'every': 4}",
    ),
    Row(
        "two classes of one name beside the script",
        "-p my_class:FineGrainedHook -p my_copy:FineGrainedHook",
        files=LOCAL | {"my_copy.py": LOCAL["my_class.py"]},
        code=0,
        tells="fine-grained (-p my_class:FineGrainedHook), fine-grained-2 (-p my_copy:…",
    ),
    Row(
        "a module that has nothing to do with hookbus is not a plugin",
        "-p my_tools",
        files=LOCAL,
        code=4,
        tells="ERROR: -p my_tools: the module 'my_tools' …my_tools.py… is not a plugin",
    ),
    Row(
        "a module that cannot be imported does not load",
        "-p my_broken",
        files=LOCAL,
        code=3,
        tells=(
            "PLUGIN ERROR: cannot load plugin 'my-broken' (…my_broken)",
            "ModuleNotFoundError: No module named 'nosuchdep' …my_broken.py:1)",
            "Run without it: -p no:my-broken",
        ),
    ),
    Row(
        "a class that a module does not have does not load",
        "-p my_class:NoSuchHook",
        files=LOCAL,
        code=3,
        tells=(
            "PLUGIN ERROR: cannot load plugin 'no-such'",
            "'my_class' has no… 'NoSuchHook'",
        ),
    ),
]

ROWS = [*ON_BY_ITSELF, *WORDS, *SPELLINGS, *MISTAKEN, *LOCAL_MODULES]
