"""A chat in the terminal: the conversation, the models that answer, and the display."""
