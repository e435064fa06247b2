"""`convert.sh` and entry points. The conversion is in `limba/export`."""
