"""The libllama engine: the only place that knows llama.cpp."""
