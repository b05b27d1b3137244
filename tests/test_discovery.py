"""Plugin names: one spelling for each, whatever it was given in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookbus.discovery import canonical_name as canonical
from hookbus.discovery import name_from_class
from hookbus.discovery import unique_name as unique

words = st.lists(
    st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True), min_size=1, max_size=4
)
plain = words.filter(lambda parts: parts[0] != "hookbus")


@settings(deadline=None)
@given(plain, st.lists(st.sampled_from("-_."), min_size=3, max_size=3), st.booleans())
def test_every_spelling_means_one_plugin(
    parts: list[str], joints: list[str], upper: bool
) -> None:
    """Dashes, underscores, dots, capitals and the prefix of a distribution are one."""
    name = "-".join(parts)
    spelled = parts[0]
    for joint, part in zip(joints, parts[1:], strict=False):
        spelled += joint + part
    spelled = spelled.upper() if upper else spelled

    assert canonical(spelled) == name
    assert canonical(f"  hookbus_{spelled} ") == name
    assert canonical(name) == name


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        ("LossPrinterHook", "loss-printer"),
        ("LossPrinter", "loss-printer"),
        ("Hook", "hook"),
        ("HTTPLogHook", "http-log"),
        ("StopAtStep2Hook", "stop-at-step2"),
        ("loss_printer", "loss-printer"),
        ("Hookup", "hookup"),
        ("_LossPrinterHook", "loss-printer"),
    ],
)
def test_a_class_is_called_in_kebab_case_without_hook(cls: str, name: str) -> None:
    """A hook that no entry point names bears its class's name."""
    assert name_from_class(cls) == name


@settings(deadline=None)
@given(st.sets(st.integers(2, 12)), st.booleans())
def test_a_further_instance_gets_the_first_free_number(used: set[int], bare: bool) -> None:
    """The bare name goes first, then -2, -3, …, whichever is free."""
    taken = {f"log-{n}" for n in used} | ({"log"} if bare else set())
    expected = "log"
    if bare:
        expected = f"log-{min(n for n in range(2, 14) if n not in used)}"
    assert unique("log", taken) == expected
