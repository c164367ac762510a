"""C libraries whose functions compiled code calls; SoftPosit is one."""
