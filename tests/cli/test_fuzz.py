"""Whatever a user, a file or a distribution holds: an error of hookbus, and its exit code.

Each failing case is printed by hypothesis in its shortest form, to be tried again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookbus import HookbusError
from hookbus.checkpoint.manifest import MANIFEST_NAME, Manifest
from hookbus.config.declared import declared_settings
from hookbus.config.files import LOADERS
from hookbus.config.keys import FLAGS, KEYS
from hookbus.config.sources import ENVIRONMENT
from hookbus.discovery import installed_plugins
from hookbus.errors import ExitCode
from tests.support.in_process import run_here
from tests.support.profiles import cases

fuzzed = settings(
    max_examples=cases(60, 10_000),
    deadline=None,
    # Each case makes its own files; the fixtures are only the folder that holds them.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

CODES = set(ExitCode)
PLUGINS = installed_plugins().plugins
SETTINGS = [
    f"{name}.{field}"
    for name, plugin in PLUGINS.items()
    for field in getattr(declared_settings(plugin), "fields", ())
]
ODD = [
    *("", " ", "-", "--", "...", ":", "=", ",", "'", '"', "[", "]", "#", "\\", "%", "{"),
    *("no:", "no:progress", "progress", "session", "hookbus", "true", "none", "nan", "inf"),
    *("9" * 5000, "9" * 400, "-" + "9" * 20, "1e400", "0x1", "²", "٣", "1_0", "0" * 5000),
    *("quarantine", "quarantine:0", "quarantine:" + "9" * 400, "raise", "os:path", "x:y.z"),
    *(
        "\x1b[31m",
        "\u202e",
        "\x85",
        "\udcff",
        "é",
        "\N{GRINNING FACE}",
        "a" * 3000,
        "a." * 500,
    ),
    *("[" * 2000, "(" * 500, "a,b", "a[b]>=1,<2", "hookbus-x>=0.2", "--", "-pno:progress"),
]
COMMANDS = [("plugins",), ("plugins", "-v"), ("plugins", "--json"), ("why",), ("hooks",)]
COMMANDS += [("run", "--help"), ("run", "empty.py"), ("why", "progress"), ("evaluate",)]
COMMANDS += [("export",), ("export", "no/runs", "model.safetensors")]
COMMANDS += [("checkpoints",), ("checkpoints", "no/runs"), ("checkpoints", ".", "rm", "1")]

texts = st.sampled_from(ODD) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=12
)
words = texts.map(lambda text: text.replace("\0", "0"))  # no argument or variable has one
numbers = st.integers() | st.floats()
keys = st.sampled_from([*KEYS, *SETTINGS, *PLUGINS]) | words
flags = st.one_of(
    st.tuples(st.just("-p"), st.sampled_from([*PLUGINS]) | words),
    st.builds(lambda key, value: ("-o", f"{key}={value}"), keys, words),
    st.builds(
        lambda key, value: (f"--{key.replace('.', '-')}", value),
        st.sampled_from([*SETTINGS, *PLUGINS]),
        words,
    ),
    st.tuples(st.sampled_from([*FLAGS, "-c", "-q", "-v", "--input", "--steps"]), words),
    st.tuples(words.map(lambda word: f"--{word}")),
    st.tuples(words.filter(lambda word: not word.startswith("-m"))),
)
lines = st.lists(flags, max_size=3).map(lambda every: [w for flag in every for w in flag])
values = st.recursive(
    texts | numbers | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def check(command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    """Run a command; nothing but an exit code of the design comes out of it."""
    code, written = run_here(command, environ)
    assert code in CODES
    assert "Traceback" not in written
    assert "\x1b" not in written


@pytest.fixture(autouse=True)
def _script(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("empty.py").touch()
    # The program of `hookbus run -` comes from there.
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


@fuzzed
@given(st.sampled_from(COMMANDS), lines)
def test_flags(command: tuple[str, ...], given_flags: list[str]) -> None:
    """The command line."""
    check([command[0], *given_flags, *command[1:]])


@fuzzed
@given(
    st.sampled_from(COMMANDS),
    st.dictionaries(
        st.sampled_from([*ENVIRONMENT, "HOOKBUS_PLUGIN"]),
        words | lines.map(" ".join) | lines.map(",".join),
    ),
)
@pytest.mark.long
def test_variables(command: tuple[str, ...], environ: dict[str, str]) -> None:
    """The environment."""
    check(command, environ)


def toml(value: object) -> str:
    """Return a value as it could stand in a TOML file, valid or not."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value)


headers = st.one_of(
    st.sampled_from(["hookbus", "tool.hookbus", "tool:hookbus", "tool", "[tool.hookbus]"]),
    st.builds(
        "{}.{}".format,
        st.sampled_from(["hookbus", "tool.hookbus", "tool:hookbus"]),
        st.sampled_from([*PLUGINS]) | texts,
    ),
    texts,
)
entries = st.builds(
    "{} = {}".format,
    st.sampled_from([*KEYS, *(name.partition(".")[2] for name in SETTINGS)]) | texts,
    values.map(toml) | texts,
)
files = st.one_of(
    st.builds(
        lambda first, header, rest: "\n".join([*first, f"[{header}]", *rest]).encode(
            "utf-8", "surrogatepass"
        ),
        st.lists(entries, max_size=2),
        headers,
        st.lists(entries | headers.map("[{}]".format), max_size=3),
    ),
    st.binary(max_size=40).map(lambda rest: b"[tool.hookbus]\n" + rest),
)


@fuzzed
@given(st.sampled_from(COMMANDS), st.sampled_from([*LOADERS]), files)
@pytest.mark.long
def test_config_files(command: tuple[str, ...], name: str, content: bytes) -> None:
    """A config file of each kind."""
    Path(name).write_bytes(content)
    try:
        check(command)
    finally:
        Path(name).unlink()


points = st.builds(
    lambda group, every: b"\n".join([b"[%b]" % group, *every]),
    st.sampled_from([b"hookbus", b"hookbus.autouse", b"hookbus.codec", b"hookbus."])
    | st.binary(max_size=9),
    st.lists(
        st.builds(
            lambda name, equals, value: f"{name}{equals}{value}".encode("utf-8", "replace"),
            texts,
            st.sampled_from([" = ", "=", "", " "]),
            st.sampled_from(["fake_fuzz", "fake_fuzz:Hook", "fake_fuzz:x[y]"]) | texts,
        )
        | st.binary(max_size=20),
        max_size=4,
    ),
)
about = st.lists(
    st.builds(
        lambda key, value: f"{key}: {value}".encode("utf-8", "replace"),
        st.sampled_from(["Name", "Version", "Summary", "Requires-Dist"]) | texts,
        texts,
    )
    | st.binary(max_size=20),
    max_size=5,
).map(b"\n".join)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have no distribution installed besides those of a case."""
    for command in COMMANDS:
        run_here(command)  # imports what the commands need
    packages = [path for path in sys.path if "site-packages" in path]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in packages])
    finders = [finder for finder in sys.meta_path if isinstance(finder, type)]
    monkeypatch.setattr(sys, "meta_path", finders)
    yield
    sys.modules.pop("fake_fuzz", None)


@pytest.mark.usefixtures("alone")
@fuzzed
@given(st.sampled_from(COMMANDS), points, points, about)
@pytest.mark.long
def test_metadata(
    tmp_path_factory: pytest.TempPathFactory,
    command: tuple[str, ...],
    own: bytes,
    other: bytes,
    headers: bytes,
) -> None:
    """The metadata of distributions, one of which keeps its name and version."""
    site = tmp_path_factory.mktemp("site")
    (site / "fake_fuzz.py").touch()
    known = b"Name: fake-other\nVersion: 1.0\n"
    for name, first, text in (("own", b"", own), ("other", known, other)):
        info = site / f"fake_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_bytes(first + headers)
        (info / "entry_points.txt").write_bytes(text)
    sys.path.append(str(site))
    try:
        code, written = run_here(command)
    finally:
        sys.path.remove(str(site))
        sys.path_importer_cache.pop(str(site), None)
        shutil.rmtree(site)
    assert code in CODES
    assert "Traceback" not in written
    assert [c for c in written if not c.isprintable() and c != "\n"] == []


def sealed(body: dict[str, Any]) -> bytes:
    """Return a manifest with the hash that it would have."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}).encode()


FIELDS = ["global_step", "codec", "saved_by", "why", "files", "versions", "ended", "format"]
GOOD = Manifest(3, "safetensors", "saver", "why", {}, {})
bodies = st.dictionaries(st.sampled_from(FIELDS) | texts, values, max_size=4).map(
    lambda odd: {**json.loads(GOOD.text()), **odd}
)
manifests = st.one_of(
    bodies.map(lambda body: sealed({k: v for k, v in body.items() if k != "sha256"})),
    bodies.map(json.dumps).map(str.encode),
    values.map(json.dumps).map(str.encode),
    st.sampled_from([b"[" * 3000, b'{"a":' * 3000, b"9" * 5000, b"", b"\xff"]),
    st.binary(max_size=40),
)


@fuzzed
@given(manifests)
def test_manifests(content: bytes) -> None:
    """The manifest of a checkpoint, forged ones with a hash that fits included."""
    Path(MANIFEST_NAME).write_bytes(content)
    with contextlib.suppress(HookbusError):
        Manifest.read(Path()).verify(Path())
