"""Job files of `edl bench elastic` and `edl bench students`, and the web service of the former."""
