"""Parts of `edl bench plan`: predicted meshes with stated rates, and with real models."""
