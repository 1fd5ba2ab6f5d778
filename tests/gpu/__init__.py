"""Teachers, readers and students on a GPU; without one, the same on the CPU as a rehearsal."""
