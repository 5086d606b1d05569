"""What holds a process whose code nobody has read: namespaces, files, system calls, control groups, and the account of what it uses."""
