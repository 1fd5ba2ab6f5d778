"""`edl chaos`: a real mesh on this machine, broken on purpose, and what has to hold meanwhile."""
