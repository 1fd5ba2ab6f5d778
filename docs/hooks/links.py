"""mkdocs hook: links out of `docs/` lead somewhere on the site too, and anchors are a Git host's.

Pages are written for a plain Git host: a link to `../examples/digits.py` is relative to the page's
place in the repository. Here each such target becomes a page of the site, a text file as a
listing, a folder as a list of names, a picture as it is; what these pages link to follows, and
every link is rewritten. What does not exist stays as it is, for mkdocs to warn of.
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
#: Where a file of the repository is on the site; others are under `source/`.
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
    """Anchors as Git hosts make them, so that a link with one is right in both places."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to and is not under `docs/`, and what those pages link to, and so on."""
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
    """Rewrite the links of a page whose target is elsewhere on the site than in the repository."""
    place = page.file.src_uri
    inside = {site: path for path, site in NAMED.items()}
    source = inside.get(place) or place.removeprefix("source/")
    source = DOCS + place if source == place else source.removesuffix(".listing.md")

    def rewritten(link: re.Match[str]) -> str:
        path = _meant(source, link["path"])
        if link["path"].startswith("/") or not (ROOT / path).exists():
            return link[0]
        there = posixpath.relpath(site_uri(path), posixpath.dirname(place) or ".")
        return f"{link['before']}{there}{link['anchor'] or ''}{link['after']}"

    return "".join(
        piece if code else _LINK.sub(rewritten, piece) for code, piece in _pieces(markdown)
    )


def site_uri(path: str) -> str:
    """Where a file or folder of the repository is found on the site, before it is rendered."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if path in NAMED:
        return NAMED[path]
    plain = path.endswith((".md", *PICTURES))
    return f"source/{path}" if plain else f"source/{path}.listing.md"


def _file(path: str, config: Any) -> File:
    """A file of the site for one of the repository that is not under `docs/`."""
    place = ROOT / path
    uri = site_uri(path)
    listed = InclusionLevel.INCLUDED if path in NAMED else InclusionLevel.NOT_IN_NAV
    if path.endswith((".md", *PICTURES)):
        return File.generated(config, uri, abs_src_path=str(place), inclusion=listed)
    if place.is_dir():
        names = sorted(one.name + "/" * one.is_dir() for one in place.iterdir())
        shown = "\n".join(f"- `{name}`" for name in names if not name.startswith((".", "__")))
    else:
        language = LANGUAGES.get(place.suffix, "text")
        shown = f"~~~~~{language}\n{place.read_text('utf-8').rstrip()}\n~~~~~"
    text = f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n{shown}\n"
    return File.generated(config, uri, content=text, inclusion=listed)


def _targets(page: str, text: str) -> Iterator[str]:
    """Where the links of a page lead, as paths in the repository."""
    for code, piece in _pieces(text):
        if not code:
            yield from (_meant(page, link["path"]) for link in _LINK.finditer(piece))


def _meant(page: str, target: str) -> str:
    """The path in the repository of what a page names."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """A page cut into pieces, of which every second is code."""
    at = 0
    for code in _CODE.finditer(text):
        yield False, text[at : code.start()]
        yield True, code[0]
        at = code.end()
    yield False, text[at:]
