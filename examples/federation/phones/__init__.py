"""A Flower project: what the sites train, and what each of them holds."""
