"""Job files of `edl bench elastic` and `students`, and a web service beside jobs."""
