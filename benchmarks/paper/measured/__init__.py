"""What experiments of the paper run on this machine, beside their simulations."""
