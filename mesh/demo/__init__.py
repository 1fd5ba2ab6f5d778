"""`edl demo`: trains one student three ways, kills a teacher on the way, shows what happened."""
