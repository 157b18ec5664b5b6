"""More than one device, and more than one process."""
