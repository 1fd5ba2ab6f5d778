"""`edl demo`: trains one student in four ways, kills a teacher on the way, shows what happened."""
