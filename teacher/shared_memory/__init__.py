"""System shared memory: tensors that lie in a caller's own memory, on this host only.

A region is a piece of a shared-memory object (`/dev/shm`) that a caller registers under a name. The
teacher does not map it: inputs are copied in with `pread` and outputs are written with `pwrite`,
through a descriptor that is open for reading only, and for writing only while something is written.
So a region that is cut short or goes away in the middle of a copy is a short read, which is
refused, and never a SIGBUS; and memory that is missing (`/dev/shm` is full) is an error, too.

**In place.** The memory of our readers has no name (`proto/shared_buffer.py`): a process that has
it open registers it. The kernel has been told never to let it become smaller, so it is mapped, and
inputs with a generation are read where they lie.

**Confined.** Only callers on this host may register, only objects whose name begins with `PREFIX`
and which belong to the caller's user, and only so many. Regions belong to who registered them: the
names of others mean nothing.

**Generations.** A caller that has given a request up (it was too late, another teacher was faster)
cannot know that the teacher has; a stopped process may go on an hour later, when the memory has
long been given to another batch. So a place may have a *generation*: a number in the 8 bytes before
it (unsigned, little-endian), which the caller changes before it uses the place for anything else,
and names in the request. An input is taken when the number is the one named both before and after
the copy, and one that is read in place when it still is after it was labelled; else the request is
refused, to be sent again. An output is written while the teacher
holds a lock (an exclusive one, of fcntl's open-file-description kind) on the number's 8 bytes, and
only if, under that lock, it is still the one named. So whoever takes a place back takes the same
lock, changes the number and lets go; where it does not get the lock, a teacher is writing there, or
was stopped while it did, and that place is to be left alone. Numbers that begin at random prove,
besides, that both sides look at the same memory.

Without a generation the extension is as Triton has it: safe for who waits for every answer.
"""
