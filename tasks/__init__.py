"""Tasks, one module per corpus or language; a run imports the module that its gin file names."""
