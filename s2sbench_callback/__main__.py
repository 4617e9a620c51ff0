"""``python -m s2sbench_callback``."""

from s2sbench_callback.cli import main

if __name__ == "__main__":
    main()
