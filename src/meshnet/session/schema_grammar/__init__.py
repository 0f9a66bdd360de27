"""JSON schemas as GBNF: every text that the grammar allows is a value that the schema allows."""
