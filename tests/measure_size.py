"""Count files and lines of code by folder, of this checkout or of commits side by side.

    python tests/measure_size.py [--folders scheduler,proto] [COMMIT ...]

A line of code is one with a token of Python on it that is neither a comment nor a docstring.
Generated stubs do not count.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = "scheduler,distill_reader,teacher,proto"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def main(argv: list[str]) -> int:
    """Print a table: a line for each folder and their sum, two columns for each tree."""
    parser = argparse.ArgumentParser(prog="tests/measure_size.py", description=__doc__)
    parser.add_argument("--folders", default=FOLDERS, help="separated by commas; tests is another")
    parser.add_argument("commits", nargs="*", help="none: this checkout as it is")
    options = parser.parse_args(argv)
    folders = options.folders.split(",")
    trees = options.commits or ["checkout"]
    sizes = {tree: measured(tree if options.commits else None, folders) for tree in trees}
    print(f"| folder |{' |'.join(f' {tree}: files | lines of code' for tree in trees)} |")
    print("|---" * (1 + 2 * len(trees)) + "|")
    for folder in (*folders, "together"):
        found = [size_of(sizes[tree], folder) for tree in trees]
        print(f"| {folder} | {' | '.join(f'{files} | {lines:,}' for files, lines in found)} |")
    return 0


def size_of(sizes: dict[str, tuple[int, int]], folder: str) -> tuple[int, int]:
    """Files and lines of a folder, or of all together."""
    chosen = sizes.values() if folder == "together" else [sizes[folder]]
    return sum(files for files, _ in chosen), sum(lines for _, lines in chosen)


def measured(commit: str | None, folders: list[str]) -> dict[str, tuple[int, int]]:
    """Folder -> its files and lines of code."""
    found = dict.fromkeys(folders, (0, 0))
    for path, text in sources(commit):
        folder = path.partition("/")[0]
        if folder in found and "_pb2" not in path:
            files, lines = found[folder]
            found[folder] = files + 1, lines + lines_of_code(text)
    return found


def sources(commit: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of each tracked Python file."""
    if commit is None:
        listed = subprocess.run(
            ["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for path in filter(lambda one: (ROOT / one).is_file(), listed.splitlines()):
            yield path, (ROOT / path).read_text()
        return
    packed = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)) is not None:
                yield member.name, file.read().decode()


def lines_of_code(text: str) -> int:
    """Lines with code, without comments, docstrings and blanks."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of all docstrings, those of attributes and protocols too."""
    found: set[int] = set()
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) or () if not _is_expression(node) else ():
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                found.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found


def _is_expression(node: ast.AST) -> bool:
    return isinstance(node, ast.Lambda | ast.IfExp)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
