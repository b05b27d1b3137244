"""Leaves out the modules of the site, which import MkDocs: only tox -e docs has that."""

collect_ignore = ["site"]
