"""The options of `edl student`: their help, their limits, their environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .settings import Amp, Deal, LrPolicy

_WORLD = "Nodes and ranks"
_LENGTH = "How long"
_BATCH = "Batches"
_SAVING = "Checkpoints"
_LOOKING = "Looking on"

JobFile = Annotated[
    Path,
    typer.Argument(
        metavar="JOB.py",
        help="The job file: Python with model(), loss(), optimizer() and feed(); docs/job-file.md.",
    ),
]
Job = Annotated[
    str | None,
    typer.Option("--job", help="Name of the training in the mesh. Default: that of the job file."),
]
Nodes = Annotated[
    str,
    typer.Option(
        envvar="EDL_NODES",
        metavar="[MIN:]MAX",
        help="How many nodes may train together, as in 1:4; this command is one of them. "
        "Default: as many as the launcher started, else 1.",
        rich_help_panel=_WORLD,
    ),
]
RanksPerNode = Annotated[
    int,
    typer.Option(min=1, help="Student processes of this node.", rich_help_panel=_WORLD),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_COORDINATOR",
        help="Redis URL of the mesh: nodes meet there, and teachers are found there.",
        rich_help_panel=_WORLD,
    ),
]
Teachers = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT,...",
        help="Teachers to ask where there is no coordinator.",
        rich_help_panel=_WORLD,
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        envvar="EDL_HOST",
        help="Address by which other nodes reach the ranks of this one. Default: POD_IP, else "
        "the one on the way to the coordinator.",
        rich_help_panel=_WORLD,
    ),
]
Hang = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="A rank without a step for so long is killed, and the world formed anew.",
        rich_help_panel=_WORLD,
    ),
]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="End after so many epochs.", rich_help_panel=_LENGTH)
]
Steps = Annotated[
    int | None, typer.Option(min=1, help="End after so many steps.", rich_help_panel=_LENGTH)
]
TotalBatch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Rows of a step over all ranks, whatever their number. Default: the feed's own.",
        rich_help_panel=_BATCH,
    ),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Rows of one forward pass at most; gradients of several are added up.",
        rich_help_panel=_BATCH,
    ),
]
DealOption = Annotated[
    Deal,
    typer.Option(
        "--deal",
        help="dynamic: ranks lease shards and get rows in proportion to their speed; static: "
        "equal parts, the same whatever the timing.",
        rich_help_panel=_BATCH,
    ),
]
ShardRows = Annotated[
    int | None,
    typer.Option(min=1, help="Samples of a shard. Default: chosen.", rich_help_panel=_BATCH),
]
Seed = Annotated[
    int,
    typer.Option(min=0, help="Of parameters and of the order of samples.", rich_help_panel=_BATCH),
]
AmpOption = Annotated[Amp, typer.Option("--amp", help="Mixed precision.", rich_help_panel=_BATCH)]
LrPolicyOption = Annotated[
    LrPolicy,
    typer.Option(
        "--lr-policy",
        help="What becomes of the learning rate when the number of ranks changes.",
        rich_help_panel=_BATCH,
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="PLACE",
        help="Folder or URL (s3://, gs://, hdfs://) that all nodes reach; training goes on from "
        "the newest valid checkpoint there. Default: a temporary one, for one node.",
        rich_help_panel=_SAVING,
    ),
]
AcceptChange = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-change",
        metavar="FIELD",
        help="Go on from a checkpoint although this setting, as `seed` or `total_batch`, has "
        "changed since; may be given several times.",
        rich_help_panel=_SAVING,
    ),
]
SaveEverySteps = Annotated[
    int | None,
    typer.Option(min=1, help="Steps between two checkpoints.", rich_help_panel=_SAVING),
]
SaveEvery = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Seconds between two checkpoints.",
        rich_help_panel=_SAVING,
    ),
]
SaveOverhead = Annotated[
    float,
    typer.Option(
        metavar="PART",
        help="Without the two above: save the first step, then as often as takes this part of the "
        "time at most; 0: only when the world changes and at the end.",
        rich_help_panel=_SAVING,
    ),
]
Keep = Annotated[
    int, typer.Option(min=1, help="Checkpoints that are kept.", rich_help_panel=_SAVING)
]
Events = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Write event files of TensorBoard.", rich_help_panel=_LOOKING
    ),
]
IdLog = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Each rank writes which samples each of its steps trained.",
        rich_help_panel=_LOOKING,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Print what would be done; no rank is started."),
]
From = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="PLACE",
        help="A checkpoint, or a place with several: then the newest valid one.",
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Rows of a batch, where the feed does not say it.")
]
