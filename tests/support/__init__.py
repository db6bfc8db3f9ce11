"""What tests of several folders share: repositories on disk, servers as processes, engines in this process."""
