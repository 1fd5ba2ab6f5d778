"""Parts of `edl bench teacher` beside the teacher: models, bare models, and a watcher."""
