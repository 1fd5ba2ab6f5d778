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
    """Print a table: a line for each folder and for the sum, two columns for each tree."""
    parser = argparse.ArgumentParser(prog="tests/measure_size.py", description=__doc__)
    parser.add_argument("--folders", default=FOLDERS, help="separated by commas; tests is another")
    parser.add_argument("commits", nargs="*", help="none: this checkout as it is")
    options = parser.parse_args(argv)
    trees = options.commits or ["checkout"]
    sizes = [lines_by_folder(tree) for tree in trees]
    print(f"| folder |{' |'.join(f' {tree}: files | lines of code' for tree in trees)} |")
    print("|---" * (1 + 2 * len(trees)) + "|")
    folders = options.folders.split(",")
    for name, chosen in (*((one, [one]) for one in folders), ("together", folders)):
        found = [[lines for one in chosen for lines in tree.get(one, [])] for tree in sizes]
        print(f"| {name} | {' | '.join(f'{len(files)} | {sum(files):,}' for files in found)} |")
    return 0


def lines_by_folder(tree: str) -> dict[str, list[int]]:
    """Return the lines of code of each file, by top folder."""
    found: dict[str, list[int]] = {}
    for path, text in sources(tree):
        if "_pb2" not in path:
            found.setdefault(path.partition("/")[0], []).append(lines_of_code(text))
    return found


def sources(tree: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each tracked Python file of the checkout or of a commit."""
    if tree == "checkout":
        for path in git("ls-files", "*.py").decode().splitlines():
            if (ROOT / path).is_file():
                yield path, (ROOT / path).read_text()
        return
    with tarfile.open(fileobj=io.BytesIO(git("archive", tree))) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)) is not None:
                yield member.name, file.read().decode()


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def lines_of_code(text: str) -> int:
    """Count lines with code, without comments, docstrings and blanks."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):  # a docstring, of an attribute too
                lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
