"""GGUF models: reading their headers, cutting them into slices, and keeping the slices.

Read in this order: ``gguf`` (what a file holds), ``architectures`` (which models may be cut, by
which rules), ``slice_plan`` and ``slice_file`` (what a slice holds, and its writing), ``cache``.
"""
