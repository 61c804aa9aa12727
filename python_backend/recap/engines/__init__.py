"""Where the target model runs: the contract (`base`) and its implementations."""
