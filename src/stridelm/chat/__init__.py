"""A chat in the terminal: what was said, who answers, and what is seen of it."""
