"""Every decision of the mesh, as pure functions and state machines: no I/O, no clock, no threads.

Events and the time come in as arguments, decisions come out as values; who calls carries them out.
So the same code runs in the reader, in the coordinator, in property tests and in simulators.

Each rule is imported from its own module: whoever needs one does not pay for all.
"""
