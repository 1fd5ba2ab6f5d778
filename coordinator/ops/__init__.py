"""The commands `edl status`, `edl doctor` and `edl context`, and how the mesh is shown as text."""
