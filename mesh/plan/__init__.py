"""`edl plan` and `edl profile`: what a distillation would need, bring and cost, before it runs."""
