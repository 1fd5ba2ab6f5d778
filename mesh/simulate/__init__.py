"""`edl simulate`: the mesh of a scenario file in virtual time: tables, a plot, a timeline."""
