"""The decisions of the mesh, as pure functions and state machines: no I/O, no clock, no threads.

Events and the time are arguments, decisions are return values, and the caller carries them out. So
the same code runs in the reader, in the coordinator, in property tests and in simulators.

Import each rule from its own module, so that no other rule is loaded.
"""
