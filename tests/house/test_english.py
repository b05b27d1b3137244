"""Tests that all text is plain English: pages, docstrings, comments and messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]

FOLDERS = ("benchmarks", "docs", "examples", "hookbus", "plugins", "tests")

GAP = r"""(?:[\s#"'>]|(?<=\s)f(?="))+"""
"""Between two words: a space, or a line's end in a comment, a quotation or a string."""

# "A training loop", "a training script" and so on are about something else.
_TRAINING = (
    r"training(?![-\w])(?! (?:accuracy|batch|code|cost|curve|data|epoch|example|function|"
    r"image|input|job|log|loop|loss|machine|metric|mode|op|pass|process|program|rate|row|run|"
    r"sample|script|session|set|split|state|step|time|value)(?:e?s)?\b)"
)


@attrs.frozen
class Phrase:
    """A phrase to avoid. In its patterns, a space matches any :data:`GAP`.

    Attributes:
        bad: a sentence with the phrase.
        good: the sentence without it.
        pattern: matches the phrase. Its literal beginning makes the search fast.
        before: matches the words in front of *pattern*.
    """

    bad: str
    good: str
    pattern: str = attrs.field(converter=lambda text: text.replace(" ", GAP))
    before: str = attrs.field(
        default=r"(?<!\w)", converter=lambda text: text.replace(" ", GAP)
    )

    def found_in(self, text: str) -> Iterator[re.Match[str]]:
        """Yield each place of a text that has the phrase."""
        for match in re.finditer(self.pattern, text):
            start = text[max(0, match.start() - 60) : match.start()]
            if re.search(f"(?:{self.before})\\Z", start):
                yield match


# Some of these are correct English, and make a reader go back: a noun is left out, or a
# later word changes the meaning. The list has only phrases that a pattern can find. A text
# without them need not be plain.
PHRASES = (
    # "Training" cannot be counted. A run starts, ends and is resumed.
    Phrase(
        "Stops a training at a step.",
        "Stops a training run at a step.",
        _TRAINING,
        r"\b(?:[Aa]n?|[Ee]ach|[Ee]very|[Oo]ne|[Aa]nother|[Tt]his|[Aa]n? [\w-]+) ",
    ),
    Phrase(
        "A resumed training goes on.",
        "A resumed run goes on.",
        _TRAINING,
        r"\b(?:resumed|restarted|interrupted|finished|killed|whole|first|second) ",
    ),
    Phrase(
        "Compares two trainings.",
        "Compares two training runs.",
        r"trainings(?=[.,;)]*(?:\s|\Z|\"\"\"|`))",
        r"(?<!import)(?<!as)(?<!in)(?<![,=(]) ",
    ),
    # The last word of the sentence changes its meaning.
    Phrase(
        "A key can be a variable, too.",
        "A key can also be a variable.",
        r"too(?=[.;:!?)\"]|,? and )",
        r", ",
    ),
    Phrase(
        "The state is saved, also.",
        "The state is also saved.",
        r"also(?=[.;!?)]|\"\"\"|:\s*\n)",
        r"[\w`)](?<![Ss]ee),?[\s#]+",
    ),
    # A thing does not tell: it shows, reports, states or means something.
    Phrase(
        "The flag tells that the path has a step.",
        "The flag means that the path has a step.",
        r"tells? (?:that|whether|of)\b",
    ),
    Phrase(
        "Tells whether the run ended.",
        "Shows whether the run ended.",
        r"Tells? (?:that|whether|of)\b",
    ),
    Phrase(
        "The manifest says whether the run ended.",
        "The manifest shows whether the run ended.",
        r"says? whether\b",
    ),
    Phrase(
        "Say whether the hook is due.",
        "Return whether the hook is due.",
        r"Says? whether\b",
    ),
    # "What the run gave" can be a value, a list or a file. A noun names it.
    Phrase(
        '"""Return what the run has computed."""',
        '"""Return the values of the run."""',
        r'"""(?:Return|Yield|Read|Give|Get) (?:what|who|whom|which)\b',
    ),
    # A docstring begins with its subject or with a verb, not with a clause.
    Phrase(
        '"""What a run changes."""',
        '"""The effects of a run."""',
        r'"""(?:What|Who|Which|That of)\b',
    ),
    Phrase(
        "Its order is what makes it safe.",
        "Its order makes it safe.",
        r"is what\b(?! is)",
    ),
    # The reader has to look another thing up, and to guess where the two differ.
    Phrase(
        '"""The same without the value."""',
        '"""The flag without its value."""',
        r'"""The same(?=[.,]| (?:as|by|for|from|with|without)\b)',
    ),
    # In Python None is a value, and "there is none" is about something else.
    Phrase(
        "Return the checkpoint; None if there is none.",
        "Return the checkpoint, or None without one.",
        r"none\b",
        r"\b(?:is|are|was|were) ",
    ),
    Phrase(
        "Compile a request once, for whoever makes it.",
        "Compile a request once for all hooks.",
        r"whoever\b",
    ),
    Phrase(
        "A backend need not have it.",
        "A backend does not need to have it.",
        r"need not\b",
    ),
    Phrase(
        "The hook has not a name.",
        "The hook does not have a name.",
        r"has not (?:an?|the|any|its)\b",
    ),
    Phrase(
        "The loops have not the same length.",
        "The loops do not have the same length.",
        r"have not (?:an?|the|any|their)\b",
    ),
    Phrase(
        "The run continues all the same.",
        "The run continues anyway.",
        r"all the same(?=[.,;:)])",
    ),
    Phrase(
        "The same holds for a hook of yours.",
        "The same holds for your own hook.",
        r"of (?:yours|mine|ours|theirs|one's own)\b",
    ),
    Phrase(
        "Loads the state of PyTorch's.",
        "Loads the state that PyTorch has saved.",
        r"of [A-Z]\w+'s(?=[.,;:)])",
    ),
    Phrase(
        "The plugin's hook's setting is wrong.",
        "The setting of the plugin's hook is wrong.",
        r"'s \w+'s [a-z]",
        "[a-z]",
    ),
    Phrase(
        "It is safe so far as hooks go.",
        "It is safe for hooks.",
        r"so far as\b",
    ),
    Phrase(
        "If the file exists, let it be.",
        "Leave an existing file alone.",
        r"let it be\b",
    ),
    Phrase(
        "It writes a file, as a hook does.",
        "Like a hook, it writes a file.",
        r"do(?:es)?(?=[.;:)])",
        r", as(?: [\w`]+){1,3} ",
    ),
    # "Behind" is about places, "after" about time.
    Phrase(
        "It stops behind the last step.",
        "It stops after the last step.",
        r"behind (?:(?:an?|the|its|each|every|this|that|one) )?(?:[\w-]+ )?(?:batch|block|"
        r"checkpoint|end|epoch|evaluation|event|loop|pass|pull|record|roll-back|run|save|signal|"
        r"step|stop|training|update|value|with)(?:e?s|'s)?\b",
    ),
)


def texts() -> list[Path]:
    """Return the pages, the modules and the templates, without links to others."""
    found = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        for ending in ("md", "py", "pyi", "cfg", "txt"):
            found += (ROOT / folder).glob(f"**/*.{ending}")
    built = {"build", ".tox", "node_modules"}
    return sorted(p for p in found if not p.is_symlink() and not built & {*p.parts})


def faults_of(place: Path) -> list[str]:
    """Return a line for each phrase to avoid in a file."""
    text, found = (ROOT / place).read_text("utf-8"), []
    for phrase in PHRASES:
        for match in phrase.found_in(text):
            line = text.count("\n", 0, match.start()) + 1
            words = " ".join(text[max(0, match.start() - 50) : match.end() + 30].split())
            found.append(f"{place}:{line}: {words!r}; better, for example: {phrase.good!r}")
    return found


def test_all_text_is_in_plain_english() -> None:
    """No page, docstring, comment or message has a phrase to avoid."""
    paths = texts()
    assert len(paths) > 1000
    faults = []
    for path in paths:
        place = path.relative_to(ROOT)
        if path != Path(__file__):
            faults += faults_of(place)
    assert faults == [], "\n".join(faults)


def test_a_phrase_is_found() -> None:
    """A pattern finds its example, and no pattern finds a better sentence."""
    for phrase in PHRASES:
        assert [*phrase.found_in(phrase.bad)], phrase.bad
        assert not any([*each.found_in(phrase.good)] for each in PHRASES), phrase.good


@pytest.mark.parametrize(
    "text",
    [
        "# It stops a\n    # training.",
        'log.info(\n    "it stops a "\n    f"training: {why}")',
        '"""It stops a\n    training."""',
        "> It stops a\n> training.",
    ],
)
def test_a_phrase_is_found_across_lines(text: str) -> None:
    """Comments, messages, docstrings and quotations are searched across their lines."""
    assert any([*phrase.found_in(text)] for phrase in PHRASES)


@pytest.mark.parametrize(
    "text",
    [
        "a training loop",
        "each training step ends",
        "the training data",
        "an attribute, too long for a line",
        "see also: the glossary",
        "what is this?",
        "all the same length",
        "a machine behind a proxy",
        "it leaves nothing behind",
        "from tests.support import trainings\n",
    ],
)
def test_similar_phrases_are_allowed(text: str) -> None:
    """Phrases that only look like those to avoid are not found."""
    assert not any([*phrase.found_in(text)] for phrase in PHRASES)
