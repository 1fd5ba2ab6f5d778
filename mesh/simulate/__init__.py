"""`edl simulate`: simulates the mesh of a scenario file; prints tables, draws plot and timeline."""
