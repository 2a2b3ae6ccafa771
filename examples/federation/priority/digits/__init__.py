"""A Flower project: a net and rows that it has already, and both apps."""
