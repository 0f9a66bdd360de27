"""Several machines in one: network namespaces behind a router that delays and limits."""
