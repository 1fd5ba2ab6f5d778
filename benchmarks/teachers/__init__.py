"""What `edl bench teacher` runs beside a teacher: models, the bare model, and a watcher."""
