"""mkdocs hook: publish the files outside `docs/` that pages link to, and rewrite these links.

Links on pages are relative to the repository, as on a Git host: `../examples/digits.py`. On the
site, a linked text file becomes a listing, a folder a list of names, and a picture is copied. Files
that published Markdown pages link to are published as well. Links to missing files stay, so that
mkdocs warns about them. Anchors are those of a Git host.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from pymdownx.slugs import slugify  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
#: Files of the repository with their own page of the site; others are under `source/`.
NAMED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/results/README.md": "benchmarks.md",
}
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "bash"}
_LINK = re.compile(r"(?P<before>\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?P<after>\))")
_CODE = re.compile(r"^(?P<fence> *`{3,}).*?^(?P=fence)`*\s*?$|`[^`\n]+`", re.M | re.S)


def on_config(config: Any) -> Any:
    """Make the anchors of Git hosts, so that links with anchors work there and on the site."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add files outside `docs/` that pages link to, directly or through an added page."""
    left = [(DOCS + file.src_uri, file.content_string) for file in files.documentation_pages()]
    left.append(("", " ".join(f"[]({name})" for name in NAMED)))
    seen: set[str] = set()
    while left:
        page, text = left.pop()
        for path in _targets(page, text):
            if path.startswith(DOCS) or path in seen or not (ROOT / path).exists():
                continue
            seen.add(path)
            added = _file(path, config)
            files.append(added)
            if path.endswith(".md"):
                left.append((path, (ROOT / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite a page's links to files that have another path on the site."""
    uri = page.file.src_uri
    paths = {site: path for path, site in NAMED.items()}
    source = paths.get(uri) or uri.removeprefix("source/")
    source = DOCS + uri if source == uri else source.removesuffix(".listing.md")

    def rewritten(link: re.Match[str]) -> str:
        path = _resolved(source, link["path"])
        if link["path"].startswith("/") or not (ROOT / path).exists():
            return link[0]
        target = posixpath.relpath(site_uri(path), posixpath.dirname(uri) or ".")
        return f"{link['before']}{target}{link['anchor'] or ''}{link['after']}"

    return "".join(
        piece if code else _LINK.sub(rewritten, piece) for code, piece in _pieces(markdown)
    )


def site_uri(path: str) -> str:
    """Return the `src_uri` by which mkdocs knows a file or folder of the repository."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if path in NAMED:
        return NAMED[path]
    plain = path.endswith((".md", *PICTURES))
    return f"source/{path}" if plain else f"source/{path}.listing.md"


def _file(path: str, config: Any) -> File:
    """Return the site's file for a file or folder of the repository outside `docs/`."""
    source = ROOT / path
    uri = site_uri(path)
    listed = InclusionLevel.INCLUDED if path in NAMED else InclusionLevel.NOT_IN_NAV
    if path.endswith((".md", *PICTURES)):
        return File.generated(config, uri, abs_src_path=str(source), inclusion=listed)
    if source.is_dir():
        names = sorted(one.name + "/" * one.is_dir() for one in source.iterdir())
        shown = "\n".join(f"- `{name}`" for name in names if not name.startswith((".", "__")))
    else:
        language = LANGUAGES.get(source.suffix, "text")
        shown = f"~~~~~{language}\n{source.read_text('utf-8').rstrip()}\n~~~~~"
    text = f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n{shown}\n"
    return File.generated(config, uri, content=text, inclusion=listed)


def _targets(page: str, text: str) -> Iterator[str]:
    """Yield the targets of a page's links, as paths in the repository."""
    for code, piece in _pieces(text):
        if not code:
            yield from (_resolved(page, link["path"]) for link in _LINK.finditer(piece))


def _resolved(page: str, target: str) -> str:
    """Return the path in the repository of a link's target."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the pieces of a page, and whether each is code."""
    at = 0
    for code in _CODE.finditer(text):
        yield False, text[at : code.start()]
        yield True, code[0]
        at = code.end()
    yield False, text[at:]
