"""`edl profile`: measures the speed of a job's student and teacher on this machine."""
