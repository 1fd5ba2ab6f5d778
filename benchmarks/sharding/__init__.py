"""A job whose ranks are of unequal speed."""
