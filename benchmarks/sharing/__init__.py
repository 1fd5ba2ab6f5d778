"""Users of the slots in `edl bench elastic`: trainings, and an online service with its load."""
