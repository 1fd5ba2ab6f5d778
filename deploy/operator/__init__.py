"""The operator, `edl operator run`: reconciles TeacherServices and DistillJobs of a cluster."""
