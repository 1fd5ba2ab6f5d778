"""`edl profile`: how fast a job's student and its teacher are on this machine."""
