"""The intermediate representation of operators: scalar trees, stages, loop nests, and the passes over them."""
