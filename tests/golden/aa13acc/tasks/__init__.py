"""seqio registrations, one module per corpus or language; a gin file imports the one that it names."""
