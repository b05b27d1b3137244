"""Finds the hook classes that the conformance suite tests, and runs their hooks."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import attrs

from hookbus.config.parser import Precedence
from hookbus.config.settings import Setting, build, fields_of
from hookbus.discovery import Installed, installed_plugins, name_from_class
from hookbus.errors import HookbusError, UsageError, did_you_mean, summary_of, text_of
from hookbus.hooks.hook_options import Kind
from hookbus.plugin.loading import kinds_of
from hookbus.testing._suite.endings import ENDINGS, describe, is_planned
from hookbus.testing.model import GRAPH, falling, loop_model
from hookbus.testing.steps import Steps, run_steps

STEPS = 6
"""The number of steps of a session of the suite, unless a hook stops it."""


@attrs.frozen(eq=False)
class Candidate:
    """A hook class under test.

    Attributes:
        spelled: ``module:Class``, as it was given.
        cls: the class.
        name: the name of its hooks in a session.
        plugin: the installed plugin; None if no entry point names the class.
        settings: field to text.
        nodes: the nodes that the tiny model has besides ``loss`` and ``accuracy``.
        inputs: further values that each step has, by name.
        backend: ``graph``, or the library whose model the sessions train.
    """

    spelled: str
    cls: type
    name: str
    plugin: Installed | None
    settings: Mapping[str, str]
    nodes: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = attrs.field(factory=dict)
    backend: str = GRAPH

    @property
    def label(self) -> str:
        """The class, and the backend unless it is the graph, for the names of tests."""
        return self.spelled if self.backend == GRAPH else f"{self.spelled}-{self.backend}"

    @property
    def sessions(self) -> list[tuple[str, str]]:
        """The kinds of loops, each with the ways in which its sessions end."""
        loops = ("graph", "custom_loop") if self.backend == GRAPH else ("custom_loop",)
        return [
            (loop, ending)
            for loop in loops
            for ending in ENDINGS
            if (loop, ending) != ("custom_loop", "preempted")  # it does not recover
        ]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of sessions in which its hooks take part."""
        found = tuple(kind for kind in kinds_of(self.cls) if kind != "aux")
        return found or ("train",)

    @property
    def kind(self) -> Kind:
        """The kind of most sessions of the suite."""
        return "train" if "train" in self.kinds else self.kinds[0]

    @property
    def switch(self) -> str:
        """The argument of ``-p``."""
        return self.name if self.plugin else self.spelled

    @property
    def variables(self) -> dict[str, float]:
        """The tiny model's further variables and their initial values."""
        return dict.fromkeys(self.nodes, 1.0)

    def make(self) -> Any:
        """Return a new hook.

        Raises:
            UsageError: the settings are wrong, or one is missing.
        """
        given = [
            Setting(
                self.name, field, text, f"--hook-setting {field}={text}", Precedence.COMMAND
            )
            for field, text in self.settings.items()
        ]
        return build(self.cls, self.name, given)

    def end(self, hook: Any, ending: str, **arguments: Any) -> Steps:
        """Run a session with one of the :data:`ENDINGS`."""
        cause = ENDINGS[ending]()
        if isinstance(cause, BaseException):
            return self.run(hook, errors={3: cause}, **arguments)
        return self.run(hook, *filter(None, [cause]), **arguments)

    def run(self, *hooks: Any, after: int = 0, **arguments: Any) -> Steps:
        """Run a session; the result has its error.

        Args:
            hooks: the hook under test and others, in calling order.
            after: the number of steps before the session's first one, for the values.
            arguments: further arguments of ``run_steps``.
        """
        values: dict[str, Any] = {
            name: all_[after:] for name, all_ in falling(after + STEPS).items()
        }
        values |= {name: [value] for name, value in self.inputs.items()}
        usual = {"steps": STEPS, "stop_grace_period_secs": 2.0, "kind": self.kind}
        arguments = {**usual, "evaluates": "eval" in self.kinds, **arguments}
        arguments |= {"variables": self.variables, "backend": self.backend}
        return run_steps(*hooks, values=values, reraise=False, **arguments)

    def faults(self, steps: Steps) -> list[str]:
        """Return the errors of the hook, except in on_exception, or of the session."""
        found = [
            f"{call.event}() raised {describe(call.error)}"
            for call in steps.calls
            if call.plugin == self.name
            and call.event != "on_exception"
            and call.error is not None
            and not is_planned(call.error)
        ]
        error = steps.error
        if not found and error is not None and not is_planned(error):
            found = [f"the session failed with {describe(error)}"]
        return found


def candidates(
    spelled: Sequence[str],
    settings: Iterable[str],
    nodes: Iterable[str],
    inputs: Iterable[str] = (),
    backends: Iterable[str] = (),
) -> list[Candidate]:
    """Return the hook classes of the options, after making a hook of each.

    Args:
        spelled: the classes, each as ``module:Class``.
        settings: the settings, each as ``field=text`` for all classes with that field.
        nodes: further nodes of the tiny model.
        inputs: further values of each step, each as ``name=JSON``.
        backends: the names of backends; each class is tested with each.

    Raises:
        UsageError: a class cannot be imported or made, no class has such a field, or
            there is no such backend.
    """
    names = [*dict.fromkeys(backends)] or [GRAPH]
    for backend in names:
        try:
            loop_model(backend)
        except HookbusError as error:
            raise UsageError(f"--hook-backend {backend}: {error}") from error
    given = dict(map(_field_and_text, settings))
    values = dict(map(_name_and_value, inputs))
    classes = {name: _load(name) for name in spelled}
    fields = {name: fields_of(cls) for name, cls in classes.items()}
    for field in given:
        known = [known for own in fields.values() for known in own]
        if field not in known:
            hint = did_you_mean(field, known) or f"; it has {', '.join(known) or 'none'}"
            raise UsageError(
                f"--hook-setting {field}: {' and '.join(spelled)} has no such setting{hint}"
            )
    found = []
    for name, cls in classes.items():
        own = {field: text for field, text in given.items() if field in fields[name]}
        plugin = installed_plugins().of_class(cls)
        called = plugin.name if plugin else name_from_class(cls.__name__)
        first = Candidate(name, cls, called, plugin, own, tuple(nodes), values)
        found += [attrs.evolve(first, backend=backend) for backend in names]
        try:
            first.make()
        except Exception as error:
            raise UsageError(
                f"--hook {name}: cannot make a hook ({text_of(error)}); give it settings "
                "with --hook-setting NAME=VALUE"
            ) from error
    return found


def _field_and_text(setting: str) -> tuple[str, str]:
    field, equals, text = setting.partition("=")
    if not equals:
        raise UsageError(f"--hook-setting {setting}: expected NAME=VALUE, like every=10")
    return field.strip().replace("-", "_"), text


def _name_and_value(given: str) -> tuple[str, Any]:
    name, equals, text = given.partition("=")
    try:
        value = json.loads(text)
    except ValueError:
        equals = ""
    if not equals:
        raise UsageError(
            f"--hook-input {given}: expected NAME=JSON, like predictions=[0,1]"
        )
    if isinstance(value, list) and find_spec("numpy") is not None:
        value = import_module("numpy").asarray(value)
    return name.strip(), value


def _load(spelled: str) -> type:
    module, _, attribute = spelled.partition(":")
    try:
        found = functools.reduce(getattr, attribute.split("."), import_module(module))
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"--hook {spelled}: cannot import it ({summary_of(error)}); "
            "expected MODULE:CLASS of an installed module: pip install -e ."
        ) from error
    if not isinstance(found, type):
        raise UsageError(f"--hook {spelled}: {found!r} is not a class")
    return found
