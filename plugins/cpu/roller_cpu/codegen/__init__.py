"""Code generation: source text from programs."""
