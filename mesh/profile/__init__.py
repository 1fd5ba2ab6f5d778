"""`edl profile`: measures the speed of a job's loader, student and teacher on this machine."""
