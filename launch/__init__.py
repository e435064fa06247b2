"""Shell scripts and entry points: what a person starts. The commands are in `limba/cli`."""
