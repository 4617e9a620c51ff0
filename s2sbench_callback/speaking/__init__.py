"""From a written set to a spoken one."""
