"""Construction and the model by themselves: nothing runs."""
