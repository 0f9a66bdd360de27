"""Random-weight models of every architecture that libllama knows, and their parity when cut.

Read in this order: ``table`` (which models there are), ``listing`` (which tensors libllama wants
of one), ``weights`` and ``build`` (its file), ``parity`` (its cuts beside the whole), ``jobs`` (all
of them, each in a process of its own), ``report`` (what came of it, and the document made of that).
"""
