"""`edl demo`: trains a student in four modes, kills a teacher meanwhile, compares the results."""
