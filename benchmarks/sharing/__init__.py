"""What shares the slots in `edl bench elastic`: a training on one core, and an online service."""
