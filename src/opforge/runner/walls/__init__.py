"""What keeps a worker in: namespaces, Landlock, system calls, limits; and who looks whether it was changed."""
