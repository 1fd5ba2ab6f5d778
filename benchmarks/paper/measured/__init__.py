"""Parts of the paper's experiments that run on this machine."""
