"""What a set is like beyond its layout: its recordings, what gives its answers away, and what it shares with other material."""
