"""What a person starts: flags and gin become one frozen RunConfig, which one call into limba/ takes."""
