"""What `edl bench plan` runs: meshes that were predicted, by stated and by real devices."""
