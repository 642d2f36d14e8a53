"""Methods beside each other on the same examples: what each costs in quality and what it gains in speed."""
