"""The ``meshnet`` command: arguments and environment in, terminal out."""
