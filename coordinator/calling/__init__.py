"""The other end of the control plane: what students and operators ask of managers."""
