"""The operator: TeacherServices and DistillJobs of a cluster made true, by `edl operator run`."""
