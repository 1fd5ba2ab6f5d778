"""The teachers of tests of the reader."""

from edl.tests.distill_reader.conftest import start_teacher, teacher, teacher_address

__all__ = ["start_teacher", "teacher", "teacher_address"]
