"""TeacherServices of a cluster: each becomes a Deployment with the desired number of teachers.

`reconciler.TeacherServiceReconciler` reads all of them, `replica_count.py` decides the number of
teachers of each, and the reconciler applies the differences. Its state is in the status of each
resource.
"""
