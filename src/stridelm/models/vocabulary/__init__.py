"""The vocabulary in a GGUF file: its fields, how a text is cut into words, merges, and tokens as text."""
