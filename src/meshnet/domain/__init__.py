"""The vocabulary every other layer speaks: plain values and rules, no I/O, no libraries."""
