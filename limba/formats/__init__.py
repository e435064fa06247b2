"""Names and files of other trainers' checkpoints; numpy only."""
