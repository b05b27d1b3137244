"""Turns diagrams of arrows into tables, as a hook of MkDocs.

The repository shows them as pictures. A browser would need a script of some megabytes from
another server for that.
"""

import re
from collections import defaultdict

_DIAGRAM = re.compile(r"^```mermaid\nflowchart \w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown, **_other):
    """Replace each diagram by a table with the ends of the arrows from each box."""
    return _DIAGRAM.sub(lambda found: table(found[1]), markdown)


def table(diagram):
    """Return the table of a diagram, with a row for each box from which arrows start."""
    labels = dict(re.findall(r'^ *(\w+)\["(.+?)"\]$', diagram, re.MULTILINE))
    ends = defaultdict(list)
    for one, other in re.findall(r"^ *(\w+) --> (\w+)$", diagram, re.MULTILINE):
        ends[labels[one]].append(f"`{labels[other]}`")
    rows = [f"| `{one}` | {', '.join(others)} |" for one, others in ends.items()]
    return "\n".join(["| From | To |", "|---|---|", *rows])
