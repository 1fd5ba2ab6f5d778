"""`edl chaos`: injects faults into a real mesh on this machine and checks its invariants."""
