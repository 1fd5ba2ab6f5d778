"""Which shared-memory objects a teacher opens, and how: by names of one prefix only.

A key names a file of `/dev/shm` that begins with `PREFIX`; or a memory file of one of our readers,
which has no name, by a process that has it open. Nothing else is opened, whatever the key says, and
nothing that could act on being opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ...errors import RequestRefused
from ...proto.datatypes import shown
from ...proto.lent_arena import LentArena, descriptor_of

#: What the names of objects begin with that a teacher opens.
PREFIX: Final = "edl-"
#: Where shared-memory objects are.
FOLDER: Final = Path("/dev/shm")
#: Memory files that are opened, as the kernel calls them.
_LENT: Final = f"/memfd:{LentArena.NAME} "
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def open_object(key: str) -> int:
    """A descriptor of the object `key`, for reading.

    Raises:
        RequestRefused: there is no such object, or it is none that is opened here.
    """
    name = _name_of(key)
    if not name.startswith(PREFIX) or "/" in name or "\0" in name:
        raise RequestRefused(
            f"{shown(key)} is no name of shared memory that is taken here: one begins with "
            f"{PREFIX!r} and has no '/' in it"
        )
    held = descriptor_of(name)
    try:
        return _open_named(name) if held is None else _open_held(*held)
    except (OSError, UnicodeEncodeError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "no such name"
        raise RequestRefused(f"shared memory {shown(key)} cannot be opened: {why}") from None


def is_lent(key: str) -> bool:
    """Whether a key is that of a reader's memory file, in which places change hands."""
    return descriptor_of(_name_of(key)) is not None


def _name_of(key: str) -> str:
    return key.removeprefix("/")


def _open_named(name: str) -> int:
    return os.open(os.fsencode(FOLDER / name), _READ | os.O_NOFOLLOW)


def _open_held(pid: int, fd: int) -> int:
    """What a process has open as `fd`: first without opening it, to see what it is."""
    found = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    try:
        link = f"/proc/self/fd/{found}"
        if not os.readlink(link).startswith(_LENT):
            raise RequestRefused(f"descriptor {fd} of process {pid} is no memory that is lent")
        return os.open(link, _READ)
    finally:
        os.close(found)
