"""The progress of a training: for terminals, as plain lines, and as files for TensorBoard."""
