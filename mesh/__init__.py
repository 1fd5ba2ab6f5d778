"""Commands that run and inspect whole meshes: agents, jobs, `edl up`, chaos, demo, planner."""
