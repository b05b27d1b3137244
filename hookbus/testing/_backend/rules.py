"""Lists the tests of all rules."""

from __future__ import annotations

from hookbus.testing._backend import inputs, runs, trainings, values

TESTS = {
    name: test
    for module in (runs, values, inputs, trainings)
    for name, test in vars(module).items()
    if name.startswith("test_")
}
RULES = frozenset(name.removeprefix("test_") for name in TESTS)
"""The names of all rules."""
