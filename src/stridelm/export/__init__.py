"""What other engines read: StrideLM's models written in their formats."""
