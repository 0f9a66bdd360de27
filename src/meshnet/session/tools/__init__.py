"""What a model's text holds beside its answer: calls of tools, and reasoning."""
