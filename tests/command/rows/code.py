"""Lists rows about plugins that the code of a script names."""

from __future__ import annotations

from tests.command.row import Row
from tests.command.rows.settings import clipper
from tests.command.rows.strength import saver

HOOKS = [
    Row(
        "an object takes part after all plugins, and the header names its argument",
        session="hooks=[OwnHook()]",
        code=0,
        shows="own",
        tells="plugins='meter 1.0, sampler 1.0, own (hooks=)'",
        complaint=9,
    ),
    Row(
        "an object of an installed class bears its name",
        session="hooks=[installed('fake_clipper', size=7)]",
        code=0,
        shows=clipper(size=7),
        tells="clipper 1.0 (hooks=)",
    ),
    Row(
        "an object is kept out by the name of its plugin",
        "-p no:clipper",
        session="hooks=[installed('fake_clipper'), OwnHook()]",
        code=0,
        shows="own",
        tells="sampler 1.0, own (hooks=)' off='clipper (-p no:clipper)'",
    ),
    Row(
        "an object is kept out by the environment",
        env={"HOOKBUS_PLUGINS": "no:fake_clipper"},
        session="chief_only_hooks=[installed('fake_clipper')]",
        code=0,
        tells="sampler 1.0' off='clipper (HOOKBUS_PLUGINS=no:fake_clipper)'",
    ),
    Row(
        "an object is kept out by a file",
        files={"hookbus.toml": "plugins = 'no:clipper'\n"},
        session="hooks=[installed('fake_clipper')]",
        code=0,
        tells="off='clipper (hookbus.toml:1: plugins = no:clipper)'",
    ),
    Row(
        "an object of a class that no plugin names is kept out by its own name",
        "-p no:own",
        session="hooks=[OwnHook()]",
        code=0,
        shows="imported fake_meter fake_sampler",
        tells="plugins='meter 1.0, sampler 1.0' off='own (-p no:own)'",
    ),
    Row(
        "a flag does not set an object; it adds a second instance",
        "--clipper-size 5",
        session="hooks=[installed('fake_clipper', size=7)]",
        code=0,
        shows=(*clipper(size=5), *clipper(size=7)),
        tells="clipper 1.0 (--clipper-size 5), clipper-2 1.0 (hooks=)",
    ),
    Row(
        "a section of a file leaves an object alone",
        files={"hookbus.toml": "[clipper]\nsize = 5\n"},
        session="hooks=[installed('fake_clipper', size=7)]",
        code=0,
        shows=clipper(size=7),
        tells="plugins='meter 1.0, sampler 1.0, clipper 1.0 (hooks=)'",
    ),
    Row(
        "that nothing is on by itself leaves objects alone",
        "--disable-plugin-autoload",
        session="hooks=[OwnHook()]",
        code=0,
        shows="own",
        tells="plugins='own (hooks=)'",
    ),
]

CONFIG = [
    Row(
        "an empty Config has what is on by itself",
        "-p clipper",
        session="config=Config()",
        code=0,
        shows="imported fake_meter fake_sampler",
    ),
    Row(
        "a Config without autoload has nothing",
        session="config=Config(autoload=False)",
        code=0,
        shows="imported",
    ),
    Row(
        "with_plugins adds words",
        session="config=Config.current().with_plugins('clipper', 'no:meter')",
        code=0,
        shows="imported fake_clipper fake_sampler",
    ),
    Row(
        "with_plugins names a plugin that nobody has",
        session="config=Config.current().with_plugins('zzz')",
        code=4,
        tells="ERROR: with_plugins('zzz'): no plugin or module called 'zzz'",
    ),
    Row(
        "with_options sets, and so switches on",
        session="config=Config.current().with_options('clipper', size=5, strict=True)",
        code=0,
        shows=clipper(size=5, strict=True),
    ),
    Row(
        "with_options of a plugin that is switched off by the command line wait",
        "-p no:clipper",
        session="config=Config.current().with_options('clipper', size=5)",
        code=0,
        shows="imported fake_meter fake_sampler",
    ),
    Row(
        "with_options of a plugin that nobody has",
        session="config=Config.current().with_options('zzz', size=5)",
        code=4,
        tells="ERROR: with_options('zzz'…: no plugin … called 'zzz'",
    ),
]

CHECKPOINT_DIR = [
    Row(
        "checkpoint_dir= switches the saver on",
        installed="checkpoint-saver",
        session="checkpoint_dir='runs'",
        code=0,
        shows=saver(save_secs=600),
        tells="plugins='checkpoint-saver 1.0'",
    ),
    Row(
        "checkpoint_dir= does so even where nothing is on by itself",
        "--disable-plugin-autoload",
        installed="checkpoint-saver",
        session="checkpoint_dir='runs'",
        code=0,
        shows=saver(save_secs=600),
    ),
    Row(
        "a saver that is not installed is named, with how to get it",
        session="checkpoint_dir='runs'",
        code=4,
        tells=(
            "ERROR: checkpoint_dir='runs' needs the plugin 'checkpoint-saver', …: "
            "pip install hookbus-checkpoint-saver",
        ),
    ),
    Row(
        "checkpoint_dir= without saving needs no saver",
        session="checkpoint_dir='runs', save_checkpoint_secs=None",
        code=0,
        shows="imported fake_meter fake_sampler",
    ),
    Row(
        "checkpoint_dir= needs no saver that is kept out",
        env={"HOOKBUS_PLUGINS": "no:checkpoint-saver"},
        session="checkpoint_dir='runs'",
        code=0,
        shows="imported fake_meter fake_sampler",
    ),
    Row(
        "the command line keeps the saver out",
        "-p no:checkpoint-saver",
        installed="checkpoint-saver",
        session="checkpoint_dir='runs'",
        code=0,
        shows="imported",
        tells="off='checkpoint-saver (-p no:checkpoint-saver)'",
    ),
    Row(
        "an argument beats the file, and its flag the argument",
        "--checkpoint-saver-save-steps 9",
        files={"hookbus.toml": "[checkpoint-saver]\nsave_steps = 5\n"},
        installed="checkpoint-saver",
        session="checkpoint_dir='runs', save_checkpoint_steps=7",
        code=0,
        shows=saver(save_steps=9),
    ),
]

ON_ERROR = [
    Row(
        "a hook that fails ends the run, and the error names it",
        "-p raiser",
        installed="raiser",
        code=1,
        tells=(
            "OSError: the disk is full",
            "hookbus: raised by plugin 'raiser' (hookbus-raiser 1.0) in after_run()",
        ),
        situation="hook raises during the run",
        complaint=3,
    ),
    *(
        Row(
            f"a hook may fail where {place} says so",
            installed="raiser",
            code=0,
            tells="warning… hook failed… plugin=raiser …after_run …the disk is full",
            **row,
        )
        for place, row in {
            "a flag": {"flags": "--raiser-on-error warn"},
            "-o": {"flags": "-o raiser.on_error=quarantine"},
            "the environment": {
                "env": {"HOOKBUS_ADDOPTS": "--raiser-on-error quarantine:1"}
            },
            "a file": {
                "flags": "-p raiser",
                "files": {"hookbus.toml": "[raiser]\non_error = 'warn'\n"},
            },
            "with_options": {
                "session": "config=Config.current().with_options('raiser', on_error='warn')"
            },
        }.items()
    ),
    Row(
        "a hook may fail where its class says so",
        "-p my_raiser:FailingHook",
        files={
            "my_raiser.py": """\
                import hookbus

                class FailingHook(hookbus.SessionRunHook):
                    options = hookbus.HookOptions(on_error="warn")

                    def after_run(self):
                        raise OSError("the disk is full")
                """
        },
        code=0,
        tells="warning… hook failed… plugin=failing …the disk is full",
    ),
    Row(
        "a file also says so of an object",
        installed="raiser",
        files={"hookbus.toml": "[raiser]\non_error = 'warn'\n"},
        session="hooks=[installed('fake_raiser')]",
        code=0,
        tells="warning… hook failed… plugin=raiser",
    ),
    Row(
        "the command line's policy for errors beats the file's",
        "--raiser-on-error raise",
        installed="raiser",
        files={"hookbus.toml": "[raiser]\non_error = 'warn'\n"},
        code=1,
        tells="OSError: the disk is full",
    ),
    *(
        Row(
            f"no policy: {place}",
            installed="raiser",
            code=4,
            tells=f"ERROR: {source}: 'wrn' is not an error policy: …did you mean 'warn'?",
            **row,
        )
        for place, source, row in (
            ("a flag", "--raiser-on-error wrn", {"flags": "--raiser-on-error wrn"}),
            (
                "a file",
                "hookbus.toml:2",
                {
                    "flags": "-p raiser",
                    "files": {"hookbus.toml": "[raiser]\non_error = 'wrn'\n"},
                },
            ),
        )
    ),
]

ROWS = [*HOOKS, *CONFIG, *CHECKPOINT_DIR, *ON_ERROR]
