"""What operators type: `edl status`, `drain`, `events`, `service` and `doctor`."""
