"""The job of `edl bench students`, with ranks of unequal speed."""
