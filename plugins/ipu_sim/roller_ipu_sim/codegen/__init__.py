"""Code generation: manifests from programs."""
