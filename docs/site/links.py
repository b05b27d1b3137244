"""Replaces the targets of links in pages for the site, as a hook of MkDocs.

The pages are written for the repository, where a link may lead to any file. The pages of
plugins are symbolic links to their READMEs, and their own links start there. On the site, a
link to a page leads to this page, and a link to any other file to the repository.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "README.md": "project/readme.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
}
"""The files outside of ``docs/`` that are pages, each with its place on the site."""

BRANCH = "main"
_FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")


def on_config(config):
    """Give headings the anchors that they have in the repository."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")


def on_files(files, *, config):
    """Add the pages from outside of ``docs/``."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, *, page, config, files):
    """Replace the targets of links, outside of fenced blocks, and drop words of the tests.

    ``numbers="vary"`` is for the test of a page; with it, the site would see no fence.
    """
    markdown = markdown.replace(' numbers="vary"\n', "\n")
    places = {Path(f.abs_src_path).resolve(): f.src_uri for f in files if f.abs_src_path}
    source = Path(page.file.abs_src_path).resolve()

    def replaced(found):
        return led(found[0], source, page.file.src_uri, places, config.repo_url)

    parts = _FENCE.split(markdown)
    parts[::2] = [_TARGET.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def led(link, source, uri, places, repository):
    """Return the target on the site of a link, or the link itself.

    Args:
        link: the target in the repository: relative, or the address of a file there.
        source: the file with the link.
        uri: the place of this file on the site.
        places: the files of the site with their places.
        repository: the address of the repository.
    """
    path, mark, anchor = link.partition("#")
    if found := re.match(address(repository), path):
        target = ROOT / path[found.end() :]
    elif path and ":" not in path:
        target = (source.parent / path).resolve()
    else:
        return link
    if target in places:
        return posixpath.relpath(places[target], posixpath.dirname(uri)) + mark + anchor
    if not target.exists() or not target.is_relative_to(ROOT):
        return link  # MkDocs reports it
    kind = "tree" if target.is_dir() else "blob"
    inside = target.relative_to(ROOT).as_posix()
    return f"{repository.rstrip('/')}/{kind}/{BRANCH}/{inside}{mark}{anchor}"


def address(repository):
    """Return a pattern for the addresses at which the repository shows its files."""
    *_, owner, name = repository.rstrip("/").split("/")
    pages = re.escape(f"{repository.rstrip('/')}/") + f"(?:blob|tree)/{BRANCH}/"
    contents = f"https://raw.githubusercontent.com/{owner}/{name}/{BRANCH}/"
    return f"{pages}|{re.escape(contents)}"
