"""`edl plan`: predicts teachers, throughput and cost of a distillation before it runs."""
