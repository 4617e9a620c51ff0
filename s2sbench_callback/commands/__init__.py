"""The subcommands of ``s2sbench``, one a file, each a function ``run`` from its words to an exit status."""
