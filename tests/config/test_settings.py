"""Settings of hooks: how text becomes a value, and which place wins."""

from __future__ import annotations

import enum
import os.path
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hookbus
from hookbus import UsageError
from hookbus.config.convert import convert
from hookbus.config.keys import boolean
from hookbus.config.parser import Precedence as Place
from hookbus.config.settings import Setting, build, fields_of, flag_of

if TYPE_CHECKING:
    from decimal import Decimal

TRUE, FALSE = ["1", "true", "yes", "on"], ["0", "false", "no", "off"]


def flag(field: str, text: Any, place: Place = Place.COMMAND) -> Setting:
    """Return the value that ``--demo-FIELD TEXT`` gives."""
    source = f"{flag_of('demo', field)} {text}" if field else f"--demo {text}"
    return Setting("demo", field, text, source, place)


@attrs.define(eq=False)
class Demo(hookbus.SessionRunHook):
    """Has a field of each type that text can be turned into."""

    steps: int = 1
    rate: float = 1.0
    on: bool = False
    word: str = "word"
    names: Sequence[str] = ()
    pair: tuple[str, ...] = ()
    path: Path | None = None
    maybe: int | None = 7
    number: int | float | None = None
    either: Sequence[str] | str | None = None
    function: Callable[..., Any] | None = None
    table: Mapping[str, str] | None = None


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("steps", "12", 12),
        ("steps", "-3", -3),
        ("rate", "0.5", 0.5),
        ("rate", "3", 3.0),
        ("on", "Yes", True),
        ("on", "0", False),
        ("word", "12", "12"),
        ("word", "", ""),
        ("names", "loss", ("loss",)),
        ("names", " loss, accuracy,", ("loss", "accuracy")),
        ("pair", "a,b", ("a", "b")),
        ("path", "runs/a", Path("runs/a")),
        ("maybe", "none", None),
        ("maybe", "None", None),
        ("maybe", "3", 3),
        ("number", "3", 3),
        ("number", "3.5", 3.5),
        ("either", "a,b", ("a", "b")),
        ("function", "os.path:join", os.path.join),
        ("table", "os:environ", os.environ),
    ],
)
def test_text_becomes_what_the_field_is_annotated_with(field, text, value):
    """The annotation decides what the text of a flag means."""
    found = getattr(build(Demo, "demo", [flag(field, text)]), field)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("field", "text", "wanted"),
    [
        ("steps", "abc", "a whole number"),
        ("steps", "1.5", "a whole number"),
        ("steps", "none", "a whole number"),
        ("rate", "fast", "a number"),
        ("on", "maybe", "true or false"),
        ("maybe", "few", "a whole number"),
        ("number", "few", "a whole number or a number"),
        ("function", "join", "module:attribute"),
        ("function", "os.path:jion", "module:attribute"),
        ("function", "no.such.module:join", "module:attribute"),
        ("steps", "9" * 5000, "is not a whole number; it has too many digits"),
        ("steps", "-" + "9" * 400, "is not a whole number; it has too many digits"),
        ("steps", str(2**64), "is not a whole number; it has too many digits"),
        ("rate", "9" * 400, "is not a number; it has too many digits"),
        ("rate", "1e400", "is not a number; it has too many digits"),
        ("number", "9" * 400, "is not a whole number or a number; it has too many"),
        ("steps", "1e3", "'1e3' is not a whole number; write 1000"),
        ("maybe", "10.0", "'10.0' is not a whole number; write 10"),
    ],
)
def test_text_that_does_not_fit_names_the_flag(field, text, wanted):
    """The message has the flag as it was written and what would fit."""
    setting = flag(field, text)
    with pytest.raises(UsageError) as caught:
        build(Demo, "demo", [setting])
    assert setting.source in str(caught.value)
    assert wanted in str(caught.value)


@pytest.mark.parametrize(
    ("field", "text"), [("steps", "10.5"), ("steps", "1e400"), ("on", "123")]
)
def test_no_advice_is_better_than_a_wrong_one(field, text):
    """A fraction has no digit too many, and neither has what is no number."""
    with pytest.raises(UsageError, match=r"is not (a whole number|true or false)$"):
        build(Demo, "demo", [flag(field, text)])


def test_a_path_may_begin_at_home(monkeypatch):
    """A shell replaces the tilde only at the beginning of a word."""
    monkeypatch.setenv("HOME", "/home/ada")
    assert convert(Path, "~/runs", "--dir=~/runs") == Path("/home/ada/runs")
    assert convert(Path, "runs/~", "--dir=runs/~") == Path("runs/~")


@given(st.sampled_from(TRUE + FALSE), st.data())
def test_booleans_are_read_whatever_their_case(word, data):
    """Upper case and spaces around do not matter."""
    letters = [data.draw(st.sampled_from([c.upper(), c.lower()])) for c in word]
    assert boolean(f" {''.join(letters)}\t") is (word in TRUE)


@given(st.text().filter(lambda t: t.strip().lower() not in TRUE + FALSE))
def test_any_other_text_is_no_boolean(text):
    """There is no third truth value, the empty text included."""
    with pytest.raises(ValueError, match="expected one of 1, true"):
        boolean(text)


@given(st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.booleans())
def test_numbers_survive_being_written_as_text(value):
    """Python's text of a value is read as that value."""
    field = {int: "steps", float: "rate", bool: "on"}[type(value)]
    assert getattr(build(Demo, "demo", [flag(field, str(value))]), field) == value


def test_a_value_that_is_no_text_is_taken_as_it_is():
    """A setting given in code is an object already."""
    names = ["a"]
    hook = build(Demo, "demo", [flag("names", names, Place.CODE)])
    assert hook.names is names


def test_an_unknown_field_gets_a_suggestion():
    """The message names the flag, the plugin, and the field that was probably meant."""
    with pytest.raises(UsageError, match=r"--demo-step 3.*'demo'.*'step'.*'steps'"):
        build(Demo, "demo", [flag("step", "3")])
    with pytest.raises(UsageError, match="it has steps, rate"):
        build(Demo, "demo", [flag("zzz", "3")])


@attrs.define(eq=False)
class Timed(hookbus.SessionRunHook):
    """Has a pair of fields of which exactly one counts, and a main one."""

    options = hookbus.HookOptions(
        main_setting="steps",
        exclusive_settings=(("secs", "steps"),),
        default_settings={"secs": 600.0},
    )

    name: str = "timed"
    secs: float | None = None
    steps: int | None = None

    def __attrs_post_init__(self) -> None:
        if (self.secs is None) == (self.steps is None):
            raise UsageError("give one of secs and steps.")


def test_the_main_setting_is_the_flag_without_a_field():
    """``--NAME VALUE`` sets ``main_setting``, by default the first field."""
    assert build(Timed, "demo", [flag("", "5")]).steps == 5
    assert build(Demo, "demo", [flag("", "5")]).steps == 5


def test_a_plugin_without_settings_takes_no_value():
    """``--NAME VALUE`` of such a plugin says to use -p."""
    with pytest.raises(UsageError, match=r"--demo takes no value.*-p"):
        build(hookbus.SessionRunHook, "demo", [flag("", "5")])


def test_defaults_of_the_class_stand_back():
    """``default_settings`` count where nothing was said about the pair."""
    assert build(Timed, "demo", []).secs == 600.0
    assert build(Timed, "demo", [flag("name", "x")]).secs == 600.0


@pytest.mark.parametrize("weaker", [Place.DEFAULT, Place.CODE, Place.ENVIRONMENT])
def test_one_of_a_pair_clears_the_other_from_weaker_places(weaker):
    """Steps on the command line beat seconds from anywhere else, and the defaults."""
    settings = [flag("steps", "5"), flag("secs", "9", weaker)]
    for order in (settings, settings[::-1]):
        hook = build(Timed, "demo", order)
        assert (hook.secs, hook.steps) == (None, 5)


def test_both_of_a_pair_from_one_place_are_left_to_the_hook():
    """The hook's own refusal is shown, with the flags given and those that it names."""
    with pytest.raises(UsageError, match="give one of secs and steps") as caught:
        build(Timed, "demo", [flag("secs", "9"), flag("steps", "5")])
    text = str(caught.value)
    assert "Given: --demo-secs 9, --demo-steps 5" in text
    assert text.endswith(" Flags: --demo-secs, --demo-steps.")


def test_a_refusal_that_names_no_setting_shows_all_flags():
    """So the user sees what can be set."""

    class Refusing:
        def __init__(self, color: str = "red", size: int = 1) -> None:
            raise ValueError("never enough")

    with pytest.raises(UsageError, match=r"enough\..* Flags: --x-color, --x-size\.$"):
        build(Refusing, "x", [Setting("x", "size", "2", "--x-size 2", Place.COMMAND)])


PLACES = st.lists(st.sampled_from(list(Place)[1:]), min_size=1, max_size=6)


@given(PLACES)
def test_the_strongest_place_wins_and_inside_it_the_last(places):
    """The order in which settings are listed counts only within one place."""
    settings = [flag("word", str(i), place) for i, place in enumerate(places)]
    strongest = max(places)
    last = max(i for i, place in enumerate(places) if place is strongest)
    assert build(Demo, "demo", settings).word == str(last)


def test_settings_that_do_not_suffice_name_the_flags():
    """A hook that lacks a setting tells the flag that gives it."""

    @attrs.define(eq=False)
    class Limit(hookbus.SessionRunHook):
        below: float
        patience: int = 0

    with pytest.raises(UsageError, match=r"loss-limit.*--loss-limit-below"):
        build(Limit, "loss-limit", [])


def test_validators_of_fields_refuse_settings():
    """A validator's error becomes a usage error that names the flag."""

    @attrs.define(eq=False)
    class Positive(hookbus.SessionRunHook):
        steps: int = attrs.field(default=1, validator=attrs.validators.gt(0))

    assert build(Positive, "demo", [flag("steps", "2")]).steps == 2
    with pytest.raises(UsageError, match="--demo-steps -2"):
        build(Positive, "demo", [flag("steps", "-2")])


def test_converters_of_fields_get_the_text():
    """A field with a converter can be set by text as well as any other."""

    @attrs.define(eq=False)
    class Converts(hookbus.SessionRunHook):
        steps: int = attrs.field(default=1, converter=int)
        upper: str = attrs.field(default="", converter=lambda text: text.upper())

    settings = [flag("steps", "2"), flag("upper", "abc")]
    hook = build(Converts, "demo", settings)
    assert (hook.steps, hook.upper) == (2, "ABC")


def test_a_name_that_only_the_type_checker_sees_spoils_no_other_field():
    """A field annotated with an import under TYPE_CHECKING leaves the others typed."""

    @attrs.define(eq=False)
    class Checked(hookbus.SessionRunHook):
        steps: int = 1
        limit: Decimal | None = None

    assert build(Checked, "demo", [flag("steps", "2")]).steps == 2


def test_a_class_without_attrs_has_its_parameters_as_settings():
    """Any hook class's constructor tells its settings."""

    class Plain(hookbus.SessionRunHook):
        def __init__(self, steps: int = 3, *, name: str = "x") -> None:
            self.steps, self.name = steps, name

    assert fields_of(Plain) == {"steps": (int, 3), "name": (str, "x")}
    hook = build(Plain, "demo", [flag("steps", "4")])
    assert (hook.steps, hook.name) == (4, "x")


class Colour(enum.Enum):
    """Colours by name and number."""

    RED = 1
    BLUE = 2


@attrs.define(eq=False)
class Typed:
    """Settings of kinds that have a text form in some other way."""

    mode: Literal["fast", 2] = "fast"
    colour: Colour = Colour.RED
    size: Annotated[int, "bytes"] = 1
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (0, "")
    rates: Sequence[float] = ()
    words: list[str] = attrs.Factory(list)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("mode", "2", 2),
        ("mode", "fast", "fast"),
        ("colour", "BLUE", Colour.BLUE),
        ("colour", "2", Colour.BLUE),
        ("size", "3", 3),
        ("sizes", "1,2,3", (1, 2, 3)),
        ("pair", "4,x", (4, "x")),
        ("rates", "0.5, 2", (0.5, 2.0)),
        ("words", "a,b", ["a", "b"]),
    ],
)
def test_choices_and_sequences_have_a_text_form(field, text, value):
    """A member of a Literal or an Enum, and each member of a sequence, by its own type."""
    assert getattr(build(Typed, "demo", [flag(field, text)]), field) == value


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("mode", "slow", "'slow' is not one of fast, 2"),
        ("colour", "GREEN", "'GREEN' is not one of RED, BLUE"),
        ("sizes", "1,two", "'1,two' is not a list in which each item is a whole number"),
    ],
)
def test_what_is_no_choice_is_told_with_the_choices(field, text, message):
    """The message lists what there is."""
    with pytest.raises(UsageError, match=message):
        build(Typed, "demo", [flag(field, text)])


def test_a_constructor_that_fails_with_nothing_set_is_not_the_users_mistake():
    """Only a UsageError of the hook itself says so; anything else is a defect."""

    class Defect:
        def __init__(self, size: int = 1) -> None:
            len(None)

    with pytest.raises(TypeError):
        build(Defect, "demo", [])
    with pytest.raises(UsageError, match=r"NoneType.*Given: --demo-size 3"):
        build(Defect, "demo", [flag("size", "3")])


@attrs.define(eq=False)
class Either(hookbus.SessionRunHook):
    """Has one of two settings; its constructor gives one of them a default."""

    options = hookbus.HookOptions(exclusive_settings=(("secs", "steps"),))

    secs: float | None = 600.0
    steps: int | None = None


def test_one_of_a_pair_clears_a_default_of_the_constructor():
    """Whoever says steps does not mean the seconds that the class has by itself."""
    hook = build(Either, "demo", [flag("steps", "5")])
    assert (hook.secs, hook.steps) == (None, 5)
    assert build(Either, "demo", []).secs == 600.0
