"""Makes the stubs from the .proto files: `python -m edl.proto.generate [--check]`.

The stubs are committed, so that installing needs no compiler. `--check` compares what would be
generated with what is committed and names the stale files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ..errors import EdlError

HERE = Path(__file__).resolve().parent
SOURCES = (
    "inference.proto",
    "coordinator.proto",
    "paddle_serving/pipeline.proto",
    "paddle_serving/general_model.proto",
)
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def stub_names() -> list[str]:
    """Paths of the generated files, which lie beside their sources."""
    return [source.removesuffix(".proto") + suffix for source in SOURCES for suffix in SUFFIXES]


def generate(folder: Path) -> None:
    """Write the stubs to `folder`/edl/proto.

    Raises:
        EdlError: the compiler is not installed or refuses a file (it has said why on stderr).
    """
    try:
        from grpc_tools import _proto as well_known
        from grpc_tools import protoc
    except ImportError:
        raise EdlError(
            "generating stubs needs grpcio-tools, which is not installed: make install"
        ) from None
    status = protoc.main(
        [
            "protoc",
            # A virtual path: the generated files import each other as edl.proto.…
            f"-Iedl/proto={HERE}",
            f"-I{Path(next(iter(well_known.__path__)))}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpc_python_out={folder}",
            *(f"edl/proto/{source}" for source in SOURCES),
        ]
    )
    if status != 0:
        raise EdlError("protoc refuses the .proto files")


def stale(committed: Path = HERE) -> list[str]:
    """Names of the committed stubs that differ from what the sources give now, or are missing."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = Path(folder) / "edl" / "proto"
        return [
            name
            for name in stub_names()
            if not (committed / name).is_file()
            or (committed / name).read_bytes() != (fresh / name).read_bytes()
        ]


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code: 1 when `--check` finds a stale file."""
    parser = argparse.ArgumentParser(prog="python -m edl.proto.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    options = parser.parse_args(arguments)
    try:
        if not options.check:
            generate_in_place()
            return 0
        names = stale()
    except EdlError as error:
        print(f"edl: {error}", file=sys.stderr)
        return error.exit_code
    if names:
        print(f"stale: {', '.join(names)}; run `make proto` and commit", file=sys.stderr)
    return 1 if names else 0


def generate_in_place() -> None:
    """Write the stubs beside their sources."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        for name in stub_names():
            (HERE / name).write_bytes((Path(folder) / "edl" / "proto" / name).read_bytes())


if __name__ == "__main__":
    sys.exit(main())
