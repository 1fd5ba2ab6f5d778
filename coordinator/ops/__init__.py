"""The commands `edl status`, `edl doctor` and `edl context`, and the views of the mesh as text."""
