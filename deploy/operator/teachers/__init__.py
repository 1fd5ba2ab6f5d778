"""TeacherServices of a cluster: each a Deployment of teachers, as many as are desired of it.

`turning.TeacherServices` looks at all of them, has `count.py` say how many teachers each is to
have, and applies what differs. What it has to remember stands in each one's status.
"""
