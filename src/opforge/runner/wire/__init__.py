"""What parent and worker say to each other, and how it gets there."""
