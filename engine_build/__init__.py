"""From a checkpoint to what the server runs; also the small checkpoint that the tests use."""
