"""What several algorithms are made of; none of them is one by itself."""
