"""Traces as Perfetto would read them: their events, their tracks, and that they are whole."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def events_of(path: Path, *, ended: bool = True) -> list[Event]:
    """The events of a trace; of one that was cut off, as its readers complete it."""
    text = path.read_text()
    if not ended:
        assert not text.endswith("]\n")
        text = text.removesuffix("\n").removesuffix(",") + "]"
    events: list[Event] = json.loads(text)
    return events


def track_names(events: list[Event]) -> dict[tuple[int, int], str]:
    """(process, thread) -> "process: thread"."""
    named = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    return {
        (pid, tid): f"{named['process_name', pid, 0]}: {name}"
        for (what, pid, tid), name in named.items()
        if what == "thread_name"
    }


def slices(events: list[Event], track: str) -> list[Event]:
    names = track_names(events)
    return [e for e in events if e["ph"] == "X" and names[e["pid"], e["tid"]] == track]


def checked_events(path: Path) -> list[Event]:
    """The events of a trace that fits the format: complete, ordered, on tracks with names."""
    events = events_of(path)
    named = track_names(events)
    counted: dict[str, float] = {}
    open_lives: dict[int, list[Event]] = {}
    for event in events:
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        match event["ph"]:
            case "X":
                assert event["dur"] >= 0
                assert (event["pid"], event["tid"]) in named
            case "i":
                assert event["s"] in ("g", "t")
                assert event["s"] == "g" or (event["pid"], event["tid"]) in named
            case "C":
                (value,) = event["args"].values()
                assert isinstance(value, int | float)
                assert event["ts"] >= counted.get(event["name"], 0.0)
                counted[event["name"]] = event["ts"]
            case "b":
                open_lives.setdefault(event["id"], []).append(event)
            case "e":
                begun = open_lives[event["id"]].pop()
                assert (begun["name"], begun["cat"]) == (event["name"], event["cat"])
                assert begun["ts"] <= event["ts"]
            case phase:
                raise AssertionError(f"no viewer is promised to know {phase!r}")
    assert not any(open_lives.values()), "each life that was drawn has an end"
    tracks: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for track in tracks.values():  # Perfetto would draw overlapping slices into each other
        track.sort(key=lambda event: float(event["ts"]))
        for one, following in itertools.pairwise(track):
            assert one["ts"] + one["dur"] <= following["ts"] + 1.0, (one, following)  # 1 us
    return events


def lives(events: list[Event], name: str = "batch") -> dict[int, tuple[float, float]]:
    """Of each batch, when it began and ended to be so, in microseconds."""
    begun, ended = (
        {event["id"]: event["ts"] for event in events if (event["ph"], event["name"]) == (ph, name)}
        for ph in "be"
    )
    return {number: (begun[number], ended[number]) for number in ended}
